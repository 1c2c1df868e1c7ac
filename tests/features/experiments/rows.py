"""Rows of this feature in tables of tests about all components."""


def evaluations_of_a_trial(run):
    from rl4dialog.features.experiments.sweep.running import evaluations

    evaluations(run, "m")


READ_RUNS = [evaluations_of_a_trial]
