"""Rows of this feature in tables of tests about all components."""


def evaluations_of_a_trial(run):
    from rl4dialog.features.experiments.sweep.running import evaluations

    evaluations(run, "m")


def comparison_with_itself(run):
    from rl4dialog.features.experiments.identity import compare_runs

    compare_runs(run, run)


FIRST = ["report"]
READ_RUNS = [evaluations_of_a_trial, comparison_with_itself]
