"""A comparison from its plan to its page: its steps in order, then its runs in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.errors import RunFolderError
from rl4dialog.experiments.own_process import Command, run_all, run_command, say, train_arguments
from rl4dialog.experiments.quality.outcomes import Outcomes, read_outcome, write_outcomes
from rl4dialog.experiments.quality.page import markdown_page, plot_frontier
from rl4dialog.experiments.quality.plan import PlannedRun, QualityPlan, filled, load_plan, planned_runs
from rl4dialog.runs.run_folder import only_writer, write_text
from rl4dialog.training.checkpoint import is_done

OUTCOMES_FILE, PAGE_FILE, PICTURE_FILE = "outcomes.json", "page.md", "frontier.png"
RUNS_FOLDER = "runs"


def compare(
    plan_path: str, overrides: Sequence[str], output: Path, n_jobs: int, command: str, page_only: bool = False
) -> int:
    """Run everything of a plan that is not done yet, then write numbers, picture and page, which shows the command.

    With ``page_only``, nothing is run, and the page is about the runs that are complete. Returns the exit code: 0 if
    all runs are complete, otherwise that of the first failed run (1 if a signal ended it).
    """
    plan: QualityPlan = load_plan(plan_path, list(overrides))
    runs = planned_runs(plan, plan_path, output)
    failed: dict[str, int] = {}
    if not page_only:
        for run in runs:
            run.check()
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"--output_path {output} is not a folder and cannot become one: {error}") from error
        with only_writer(output):
            make_steps(plan, output)
            failed = execute(runs, output, n_jobs)
    folders = {run.name: output / RUNS_FOLDER / run.name for run in runs}
    complete = [run for run in runs if is_done(folders[run.name], run.config)]
    if not complete:
        raise RunFolderError(f"no run of the plan is complete in {output}; look there for the logs of failed ones")
    keys = list(plan.metrics), [] if plan.win_rate is None else [plan.win_rate.score, plan.win_rate.length]
    done = [read_outcome(run.label, run.seed, folders[run.name], *keys) for run in complete]
    order = {label: i for i, label in enumerate(plan.runs)}
    done.sort(key=lambda outcome: (order[outcome.label], outcome.seed))
    outcomes = Outcomes(done, [run.name for run in runs if run not in complete])
    write_outcomes(outcomes, output / OUTCOMES_FILE)
    plot_frontier(plan, outcomes, output / PICTURE_FILE)
    write_text(output / PAGE_FILE, markdown_page(plan, outcomes, command, PICTURE_FILE))
    say(f"{output / PAGE_FILE}")
    return max(1, next(iter(failed.values()))) if failed else 0


def make_steps(plan: QualityPlan, output: Path) -> None:
    """Run the commands before the runs, except those whose result exists."""
    for name, step in plan.steps.items():
        (creates,) = filled([step.creates], output)
        if Path(creates).exists():
            continue
        say(f"Step {name}")
        if code := run_command(filled(step.command, output)):
            raise RunFolderError(f"step {name!r} failed (exit code {code}); run the command again to continue")
        if not Path(creates).exists():
            raise RunFolderError(f"step {name!r} did not create {creates}")


def execute(runs: Sequence[PlannedRun], output: Path, n_jobs: int) -> dict[str, int]:
    """Train all runs that are not complete, whose output is in ``<name>.log``; returns exit codes of failed ones."""
    commands = {}
    for run in runs:
        folder = output / RUNS_FOLDER / run.name
        overrides = [text for override in run.overrides for text in ("--set", override)]
        arguments = train_arguments(run.config_path, folder, "--resume", "auto", *overrides)
        if not is_done(folder, run.config):
            commands[run.name] = Command(arguments, output / f"{run.name}.log")
    return run_all(commands, n_jobs)
