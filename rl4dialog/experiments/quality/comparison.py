"""A comparison from its plan to its page: its steps in order, then its runs in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.experiments.own_process import Command, run_all, run_command, say, train_arguments
from rl4dialog.experiments.quality.outcomes import Outcome, Outcomes, read_outcome, read_outcomes, write_outcomes
from rl4dialog.experiments.quality.page import markdown_page, plot_frontier
from rl4dialog.experiments.quality.plan import PlannedRun, QualityPlan, filled, load_plan, planned_runs
from rl4dialog.runs.run_folder import only_writer, write_text
from rl4dialog.training.checkpoint import is_done

OUTCOMES_FILE, PAGE_FILE, PICTURE_FILE = "outcomes.json", "page.md", "frontier.png"
RUNS_FOLDER = "runs"


@dataclass(frozen=True)
class Selection:
    """The runs of a plan that a command is about: by row, world and seed; of what is empty, all."""

    rows: Collection[str] = ()
    worlds: Collection[str] = ()
    seeds: Collection[int] = ()

    def of(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The selected ones."""
        asked = {"rows": self.rows, "worlds": self.worlds, "seeds": self.seeds}
        chosen = list(runs)
        for name, value_of in (("rows", "label"), ("worlds", "world"), ("seeds", "seed")):
            known = dict.fromkeys(getattr(run, value_of) for run in runs)
            for value in asked[name]:
                if value not in known:
                    raise ConfigError(f"--{name} {value}: the plan has {', '.join(map(str, known)) or 'none'}")
            chosen = [run for run in chosen if not asked[name] or getattr(run, value_of) in asked[name]]
        if not chosen:
            raise ConfigError("--rows, --worlds and --seeds have no run of the plan in common")
        return chosen


class Ledger:
    """The outcomes of a plan: those that are complete in the output folder, and those in the plan's own file."""

    def __init__(self, plan: QualityPlan, runs: Sequence[PlannedRun], output: Path) -> None:
        self._plan, self._runs, self._output = plan, runs, output
        self.path = output / OUTCOMES_FILE if plan.outcomes is None else Path(plan.outcomes)

    def folder(self, run: PlannedRun) -> Path:
        """Run folder."""
        return self._output / RUNS_FOLDER / run.name

    def recorded(self) -> dict[str, Outcome]:
        """Outcomes in the plan's file of runs with the configs of the plan, by name of the run."""
        entries = [] if self._plan.outcomes is None else read_outcomes(self.path)
        found = {(each.world, each.row, each.seed, each.config): each for each in entries}
        keys = {run.name: (run.world, run.label, run.seed, run.config_hash) for run in self._runs}
        return {name: found[key] for name, key in keys.items() if key in found}

    def read(self, run: PlannedRun) -> Outcome:
        """The outcome of a complete run."""
        plan, world = self._plan, self._plan.worlds.get(run.world)
        keys = dict.fromkeys([*([] if world is None else [world.metric]), *plan.metrics])
        of_samples = [] if plan.win_rate is None else [plan.win_rate.score, plan.win_rate.length]
        return read_outcome(run, self.folder(run), list(keys), of_samples)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes to the file; in the plan's own one, those of other runs stay."""
        new = {(each.world, each.row, each.seed): each for each in outcomes}
        others = [] if self._plan.outcomes is None else read_outcomes(self.path)
        write_outcomes(
            [*(each for each in others if (each.world, each.row, each.seed) not in new), *new.values()], self.path
        )

    def found(self) -> Outcomes:
        """All outcomes of the plan that there are, in its order."""
        recorded = self.recorded()
        complete = {run.name: self.read(run) for run in self._runs if is_done(self.folder(run), run.config)}
        known = {**recorded, **complete}
        order = {label: i for i, label in enumerate(self._plan.runs)}
        done = sorted(known.values(), key=lambda each: (order[each.row], each.seed))
        return Outcomes(done, [run.name for run in self._runs if run.name not in known])


def compare(
    plan_path: str,
    overrides: Sequence[str],
    output: Path,
    n_jobs: int,
    command: str,
    page_only: bool = False,
    selection: Selection = Selection(),
) -> int:
    """Run what is selected of a plan and not done yet, then write numbers, pictures and page, which shows the command.

    With ``page_only``, nothing is run, and the page is about the runs that are complete. Returns the exit code: 0 if
    all runs are complete, otherwise that of the first failed run (1 if a signal ended it).
    """
    plan: QualityPlan = load_plan(plan_path, list(overrides))
    runs = planned_runs(plan, plan_path, output)
    ledger, chosen = Ledger(plan, runs, output), selection.of(runs)
    failed: dict[str, int] = {}
    if not page_only:
        recorded = ledger.recorded()
        chosen = [run for run in chosen if run.name not in recorded]
        for run in chosen:
            run.check()
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"--output_path {output} is not a folder and cannot become one: {error}") from error
        with only_writer(output):
            if chosen:
                make_steps(plan, output, chosen)
            failed = execute(chosen, output, n_jobs, lambda run: ledger.write([ledger.read(run)]))
    outcomes = ledger.found()
    if not outcomes.done:
        raise RunFolderError(f"no run of the plan is complete in {output}; look there for the logs of failed ones")
    ledger.write(outcomes.done)
    output.mkdir(parents=True, exist_ok=True)
    if not plan.worlds:
        plot_frontier(plan, outcomes, output / PICTURE_FILE)
    write_text(output / PAGE_FILE, markdown_page(plan, outcomes, command, PICTURE_FILE))
    say(f"{output / PAGE_FILE}")
    return max(1, next(iter(failed.values()))) if failed else 0


def make_steps(plan: QualityPlan, output: Path, runs: Sequence[PlannedRun] = ()) -> None:
    """Run the commands before the runs, except those whose result exists."""
    for name, step in plan.steps.items():
        texts = [step.creates, *step.command]
        needed = {tuple(filled(texts, output, run.seed, run.world)) for run in runs} or {tuple(filled(texts, output))}
        for creates, *command in sorted(needed):
            if Path(creates).exists():
                continue
            say(f"Step {name}")
            if code := run_command(command):
                raise RunFolderError(f"step {name!r} failed (exit code {code}); run the command again to continue")
            if not Path(creates).exists():
                raise RunFolderError(f"step {name!r} did not create {creates}")


def execute(
    runs: Sequence[PlannedRun], output: Path, n_jobs: int, on_done: Callable[[PlannedRun], None] = lambda run: None
) -> dict[str, int]:
    """Train all runs that are not complete, whose output is in ``<name>.log``; returns exit codes of failed ones."""
    commands, by_name = {}, {run.name: run for run in runs}
    for run in runs:
        folder = output / RUNS_FOLDER / run.name
        overrides = [text for override in run.overrides for text in ("--set", override)]
        arguments = train_arguments(run.config_path, folder, "--resume", "auto", *overrides)
        if not is_done(folder, run.config):
            commands[run.name] = Command(arguments, output / f"{run.name}.log")
    return run_all(commands, n_jobs, lambda name: on_done(by_name[name]))
