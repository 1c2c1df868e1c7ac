"""A comparison from its plan to its page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.errors import RunFolderError
from rl4dialog.experiments.quality.execution import RUNS_FOLDER, execute, make_steps
from rl4dialog.experiments.quality.outcomes import Outcomes, read_outcome, write_outcomes
from rl4dialog.experiments.quality.page import markdown_page, plot_frontier
from rl4dialog.experiments.quality.plan import QualityPlan, load_plan, planned_runs
from rl4dialog.runs.run_folder import only_writer, write_text
from rl4dialog.training.checkpoint import is_done

OUTCOMES_FILE = "outcomes.json"
PAGE_FILE = "page.md"
PICTURE_FILE = "frontier.png"


def compare(
    plan_path: str, overrides: Sequence[str], output: Path, n_jobs: int, command: str, page_only: bool = False
) -> int:
    """Run everything of a plan that is not done yet, then write numbers, picture and page.

    Args:
        plan_path: The plan.
        overrides: Overrides of the plan.
        output: The output folder: ``outcomes.json``, ``frontier.png``, ``page.md``, and the runs with all replies.
        n_jobs: Number of runs at a time.
        command: The command, for the page.
        page_only: Run nothing, and write the page about the runs that are complete.

    Returns:
        Exit code: 0 if all runs are complete, otherwise that of the first failed run (1 if a signal ended it).
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
    print(f"{output / PAGE_FILE}", file=sys.stderr)
    return max(1, next(iter(failed.values()))) if failed else 0
