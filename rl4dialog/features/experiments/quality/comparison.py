"""A comparison from its plan to its page: its steps in order, then its runs in parallel; and runs that are repeated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.core.files import write_text
from rl4dialog.features.experiments.quality import cross_play
from rl4dialog.features.experiments.quality.outcomes import (
    FEWEST_SEEDS,
    Outcome,
    Outcomes,
    judge_repetition,
    read_outcome,
    read_outcomes,
    write_outcomes,
)
from rl4dialog.features.experiments.quality.page import cross_play_parts, plot_worlds, worlds_page
from rl4dialog.features.experiments.quality.plan import (
    CrossPlayPlan,
    PlannedRun,
    QualityPlan,
    filled,
    load_plan,
    planned_runs,
)
from rl4dialog.runs.run_folder import only_writer
from rl4dialog.training.own_process import (
    RESUMED,
    Command,
    ended,
    run_all,
    run_command,
    say,
    say_failed,
    train_arguments,
)

OUTCOMES_FILE, PAGE_FILE = "outcomes.json", "page.md"
CURVES_FILE, DOTS_FILE = "curves.png", "final.png"
RUNS_FOLDER, REPEATED_FOLDER = "runs", "repeated"


@dataclass(frozen=True)
class Selection:
    """The runs of a plan that a command is about: by row, world and seed; of what is empty, all."""

    rows: Collection[str] = ()
    worlds: Collection[str] = ()
    seeds: Collection[int] = ()

    def of(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        chosen = list(runs)
        for name, value_of in (("rows", "label"), ("worlds", "world"), ("seeds", "seed")):
            asked, known = getattr(self, name), dict.fromkeys(getattr(run, value_of) for run in runs)
            for value in asked:
                if value not in known:
                    raise ConfigError(f"--{name} {value}: the plan has {', '.join(map(str, known)) or 'none'}")
            chosen = [run for run in chosen if not asked or getattr(run, value_of) in asked]
        if not chosen and runs:
            raise ConfigError("--rows, --worlds and --seeds have no run of the plan in common")
        return chosen


class Ledger:
    """The runs of a plan and their outcomes, from complete run folders and from the plan's own file."""

    def __init__(self, plan_path: str, overrides: Sequence[str], output: Path) -> None:
        self.plan: QualityPlan = load_plan(plan_path, list(overrides))
        self.runs, self.output = planned_runs(self.plan, plan_path, output), output
        self.path = output / OUTCOMES_FILE if self.plan.outcomes is None else Path(self.plan.outcomes)

    def folder(self, run: PlannedRun) -> Path:
        return self.output / RUNS_FOLDER / run.name

    def metrics(self, world: str) -> list[str]:
        """Metrics of the runs in a world; the first one is that by which they are compared."""
        return list(dict.fromkeys([self.plan.compared_in[world].metric, *self.plan.metrics]))

    def read(self, run: PlannedRun, folder: Path) -> Outcome:
        rate = self.plan.win_rate
        return read_outcome(run, folder, self.metrics(run.world), [] if rate is None else [rate.score, rate.length])

    def _entries(self) -> dict[tuple[str, str, int], Outcome]:
        return {} if self.plan.outcomes is None else {each.key: each for each in read_outcomes(self.path)}

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes to the file; those of other runs stay in a plan's own one."""
        write_outcomes(list((self._entries() | {each.key: each for each in outcomes}).values()), self.path)

    def recorded(self) -> dict[str, Outcome]:
        """Outcomes in the plan's own file, of runs with the same config, by name of the run."""
        known = self._entries()
        return {run.name: each for run in self.runs if (each := known.get(run.key)) and each.config == run.config_hash}

    def found(self, failed: dict[str, int]) -> Outcomes:
        """All outcomes that there are, in the order of the plan; complete runs that are damaged are added to failed."""
        known = self.recorded()
        for run in self.runs:
            if run.name in known or run.name in failed or not run.is_done(self.folder(run)):
                continue
            try:
                known[run.name] = self.read(run, self.folder(run))
            except DataError as error:
                failed[run.name] = 2
                say(f"error: {run.name}: {error}")
        if not known and self.runs:
            where = self.output if self.plan.outcomes is None else f"{self.output} or {self.path}"
            raise RunFolderError(f"no run of the plan is complete in {where}; look there for the logs of failed ones")
        order = {label: i for i, label in enumerate(self.plan.runs)}
        done = sorted(known.values(), key=lambda each: (order[each.row], each.seed))
        return Outcomes(done, [run.name for run in self.runs if run.name not in known])


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
    all chosen runs are complete, otherwise that of the first failed run.
    """
    ledger = Ledger(plan_path, overrides, output)
    plan, chosen = ledger.plan, selection.of(ledger.runs)
    failed: dict[str, int] = {}
    if not page_only:
        recorded = ledger.recorded()
        chosen = [run for run in chosen if run.name not in recorded]
        prepare(chosen, output)
        with only_writer(output):
            if chosen:
                make_steps(plan, output, chosen)
            failed = execute(chosen, output, n_jobs, lambda run: ledger.write([ledger.read(run, ledger.folder(run))]))
    outcomes = ledger.found(failed)
    output.mkdir(parents=True, exist_ok=True)
    parts = _cross_play(ledger, 0 if page_only else n_jobs, failed) if plan.cross_play is not None else []
    code = say_failed(failed, len(failed) + len(ledger.runs if page_only else chosen))
    if outcomes.done:
        ledger.write(outcomes.done)
        plot_worlds(plan, outcomes, output / CURVES_FILE, output / DOTS_FILE)
    write_text(output / PAGE_FILE, worlds_page(plan, outcomes, command, CURVES_FILE, DOTS_FILE, parts))
    say(f"{output / PAGE_FILE}")
    return code


def agents_in(ledger: Ledger, plan: CrossPlayPlan, world: str) -> cross_play.Agents:
    """The agents of a world whose runs are complete, in the order of seeds."""
    rows: dict[str, list[Path]] = {label: [] for label in ledger.plan.runs}
    for run in sorted(ledger.runs, key=lambda run: run.seed):
        if run.world == world and run.is_done(folder := ledger.folder(run)):
            rows[run.label].append(folder)
    return cross_play.agents_of(plan, rows, ledger.output, world)


def _cross_play(ledger: Ledger, n_jobs: int, failed: dict[str, int]) -> list[str]:
    """Hold conversations with all partners, unless there are no jobs; returns the parts of the page about them."""
    plan, output = ledger.plan, ledger.output
    assert plan.cross_play is not None
    worlds = []
    for world in plan.compared_in:
        agents = agents_in(ledger, plan.cross_play, world)
        if n_jobs:
            failed |= cross_play.play(agents, n_jobs)
        worlds.append(cross_play.read(agents, ledger.metrics(world)))
    if not (worlds := [each for each in worlds if each.met]):
        return []
    found = cross_play.pooled(worlds)
    cross_play.write_numbers(found, output / cross_play.NUMBERS_FILE)
    cross_play.plot_heatmap(found, next(iter(found.scores)), output / cross_play.HEATMAP_FILE)
    return cross_play_parts(plan, found, cross_play.HEATMAP_FILE)


def verify(plan_path: str, overrides: Sequence[str], output: Path, n_runs: int, selection: Selection) -> int:
    """Repeat random runs that are complete, one after another, and judge whether they give the same again.

    See :func:`judge_repetition`. Returns the exit code: 0 if all do, 1 if one does not, or that of a failed run.
    """
    ledger = Ledger(plan_path, overrides, output)
    damaged: dict[str, int] = {}
    known = {each.key: each for each in ledger.found(damaged).done}
    complete = judgeable([run for run in selection.of(ledger.runs) if run.key in known], known)
    chosen = random.sample(complete, min(n_runs, len(complete)))
    prepare(chosen, output)
    results = []
    with only_writer(output):
        make_steps(ledger.plan, output, chosen)
        for run in chosen:
            recorded, folder = known[run.key], output / REPEATED_FOLDER / run.name
            say(f"{run.name}, which is repeated")
            threads = str(recorded.made_by["machine"]["torch_threads"])
            flags = ["--overwrite"] if folder.exists() else []
            command = train_arguments(run.config_path, folder, *flags, overrides=run.overrides)
            if code := run_command(command, environment={"OMP_NUM_THREADS": threads}):
                say(f"error: {run.name} failed ({ended(code)})")
                return code
            row = [each for each in known.values() if (each.world, each.row) == (run.world, run.label)]
            metric = ledger.metrics(run.world)[0]
            results.append(judge_repetition(recorded, ledger.read(run, folder), metric, row))
            say(f"{run.name}: {results[-1][1]}")
    return int(bool(damaged) or not all(is_same for is_same, _ in results))


def judgeable(runs: Sequence[PlannedRun], known: Collection[tuple[str, str, int]]) -> list[PlannedRun]:
    """Runs of rows with enough known seeds, so that another machine's result can be judged; else all."""
    n_seeds = Counter((world, row) for world, row, _ in known)
    return [run for run in runs if n_seeds[run.world, run.label] >= FEWEST_SEEDS] or list(runs)


def prepare(runs: Sequence[PlannedRun], output: Path) -> None:
    """Check the configs of runs, and make the output folder."""
    for run in runs:
        run.check()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"--output_path {output} is not a folder and cannot become one: {error}") from error


def make_steps(plan: QualityPlan, output: Path, runs: Sequence[PlannedRun] = ()) -> None:
    """Run the commands before the runs, except those whose result exists."""
    for name, step in plan.steps.items():
        own = [run for run in runs if step.worlds is None or run.world in step.worlds]
        with_runs = {tuple(filled(texts, output, run.seed, run.world)) for texts in step.commands for run in own}
        needed = with_runs if runs else {tuple(filled(texts, output)) for texts in step.commands}
        for creates, *command in sorted(needed):
            # A step that is killed may have created a part of its result.
            begun = output / f".step_{content_hash([creates])[:16]}"
            if Path(creates).exists() and not begun.exists():
                continue
            say(f"Step {name}")
            write_text(begun, creates)
            if code := run_command(command):
                raise RunFolderError(f"step {name!r} failed ({ended(code)}); run the command again to continue")
            if not Path(creates).exists():
                raise RunFolderError(f"step {name!r} did not create {creates}")
            begun.unlink()


def execute(
    runs: Sequence[PlannedRun], output: Path, n_jobs: int, on_done: Callable[[PlannedRun], None] = lambda run: None
) -> dict[str, int]:
    """Train all runs that are not complete, whose output is in ``<name>.log``; returns exit codes of failed ones."""
    commands, by_name = {}, {run.name: run for run in runs}
    for run in runs:
        folder = output / RUNS_FOLDER / run.name
        if not run.is_done(folder):
            command = train_arguments(run.config_path, folder, *RESUMED, overrides=run.overrides)
            commands[run.name] = Command(command, output / f"{run.name}.log")
    return run_all(commands, n_jobs, lambda name: on_done(by_name[name]))
