"""How well the warnings of training runs work: runs that were made to go wrong, and healthy runs, by a plan."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from rl4dialog import cli
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import nearest_hint
from rl4dialog.features.experiments.quality.comparison import make_steps
from rl4dialog.features.experiments.quality.plan import Group, PlannedRun, QualityPlan, load_plan, planned_runs
from rl4dialog.features.inspection.watch import CHECKS, RunFacts, Watcher
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.run_folder import is_complete, read_result
from rl4dialog.training.checkpoint import is_done

OUTCOMES_FILE, PAGE_FILE = "outcomes.json", "page.md"


class WatchedGroup(Group):
    """Runs of one config, and what is wrong with them."""

    trouble: str = ""
    """What was made to go wrong; empty for healthy runs."""
    warnings: list[str] = Field(default_factory=list)
    """The warnings that name this trouble."""

    @field_validator("warnings")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        known = [check.name for check in CHECKS]
        for name in names:
            if name not in known:
                raise ValueError(f"{name!r} is not a warning{nearest_hint(name, known)}")
        return names


class WatchPlan(QualityPlan):
    """Plan of runs, healthy ones and others."""

    runs: dict[str, WatchedGroup] = Field(min_length=1)  # type: ignore[assignment]


@dataclass(frozen=True)
class Outcome:
    """What the warnings said about one run."""

    name: str
    trouble: str  # what was made to go wrong; empty for a healthy run
    right: list[str]  # the warnings that name this trouble
    warnings: dict[str, int]  # iteration of the first one, by name
    iterations: int
    stopped: bool  # by an error
    rewards: tuple[float, float]  # mean task reward of the first and of the last five iterations
    metrics: dict[str, tuple[float, float]]  # test metrics before and after training; empty if the run did not end
    seconds: float  # NaN if the run was already there

    @property
    def named_at(self) -> int | None:
        """Iteration of the first right warning."""
        return min((at for name, at in self.warnings.items() if name in self.right), default=None)

    @property
    def others(self) -> list[str]:
        """Warnings that name something else."""
        return [name for name in self.warnings if name not in self.right]


def measure(
    plan_paths: Sequence[str], overrides: Sequence[str], output: Path, command: str
) -> dict[str, list[Outcome]]:
    """Train the runs of plans that are not there yet, judge all of them, and write numbers and page.

    The warnings are computed anew from the logs. After a change of their conditions, the same command judges the same
    runs again.
    """
    output = output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, list[Outcome]] = {}
    for path in plan_paths:
        plan = load_plan(path, list(overrides), WatchPlan)
        runs = planned_runs(plan, path, output)
        make_steps(plan, output)
        outcomes[plan.title] = [_outcome(run, plan.runs[run.label], output, Path(path).stem) for run in runs]
    content = {title: [asdict(each) for each in done] for title, done in outcomes.items()}
    (output / OUTCOMES_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (output / PAGE_FILE).write_text(page(outcomes, command), encoding="utf-8")
    return outcomes


def judge(records: Iterable[Mapping[str, Any]], facts: RunFacts) -> dict[str, int]:
    """Iteration of the first warning of each name, for the logged values of a run."""
    watcher = Watcher(facts)
    warnings: dict[str, int] = {}
    for trouble in (trouble for record in records for trouble in watcher.observe(record)):
        warnings.setdefault(trouble.name, trouble.iteration)
    return warnings


def page(outcomes: Mapping[str, Sequence[Outcome]], command: str) -> str:
    """Tables of all plans, in Markdown."""
    lines = [f"`{command}`", ""]
    for title, runs in outcomes.items():
        sick, healthy = [run for run in runs if run.trouble], [run for run in runs if not run.trouble]
        lines += [f"## {title}", "", "| trouble | named | first right warning | other warnings |", "|---|---|---|---|"]
        for trouble in dict.fromkeys(run.trouble for run in sick):
            lines.append(_row(trouble, [run for run in sick if run.trouble == trouble]))
        alarms = [run for run in healthy if run.warnings]
        lines += [_row("all", sick), "", f"False alarms: {len(alarms)} of {len(healthy)} healthy runs.", ""]
        lines += [f"- false alarm: {run.name}: {_names(run.warnings)}" for run in alarms]
        missed = [run for run in sick if run.named_at is None]
        lines += [f"- not named: {run.name}; warnings: {_names(run.warnings)}" for run in missed]
        lines.append("")
    return "\n".join(lines)


def _row(trouble: str, runs: Sequence[Outcome]) -> str:
    named = [run.named_at for run in runs if run.named_at is not None]
    first = f"{statistics.median(named):g}" if named else "never"
    others = sorted({name for run in runs for name in run.others})
    return f"| {trouble} | {len(named)} of {len(runs)} | {first} | {', '.join(f'`{name}`' for name in others)} |"


def _names(warnings: Mapping[str, int]) -> str:
    return ", ".join(f"`{name}` (iteration {at})" for name, at in warnings.items()) or "none"


def _outcome(run: PlannedRun, group: WatchedGroup, base: Path, project: str) -> Outcome:
    folder, seconds = base / project / run.name, math.nan
    if not is_done(folder, run.config):
        seconds = _train(run, base, project)
    assert isinstance(run.config, OnPolicyConfig)
    # An iteration is judged when its training is finished.
    records = [record for record in read_run(folder).iterations if any(key.startswith("train/") for key in record)]
    warnings, rewards = judge(records, _facts(run.config)), [record["rollout/task_reward"] for record in records]
    result = read_result(folder)["test"] if is_complete(folder) else {"before": {}, "after": {}}
    print(f"{run.name}: {_names(warnings)} ({len(records)} iterations, {seconds:.0f} s)", file=sys.stderr, flush=True)
    return Outcome(
        name=run.name,
        trouble=group.trouble,
        right=group.warnings,
        warnings=warnings,
        iterations=len(records),
        stopped=not is_complete(folder),
        rewards=(_mean(rewards[:5]), _mean(rewards[-5:])),
        metrics={key: (value, result["after"][key]) for key, value in result["before"].items()},
        seconds=seconds,
    )


def _train(run: PlannedRun, base: Path, project: str) -> float:
    """Train a run in this process, which saves the time of the imports; its output is in ``<name>.log``."""
    arguments = ["--config_path", str(run.config_path), "--overwrite"]
    arguments += [text for override in run.overrides for text in ("--set", override)]
    arguments += ["--base_path_to_store_results", str(base), "--project_name", project, "--experiment_name", run.name]
    started = time.perf_counter()
    (base / project).mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(base / project / f"{run.name}.log", "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        code = cli.main_of("train", arguments)
    if code in (cli.EXIT_INTERRUPTED, 130):  # by SIGTERM or Ctrl-C, which are for the whole measurement
        raise SystemExit(code)
    return time.perf_counter() - started


def _facts(config: OnPolicyConfig) -> RunFacts:
    parts = config.reward_fn.args.get("rewards", []) if config.reward_fn.id == "composite" else []
    return RunFacts(
        precision=config.precision,
        target_kl=config.alg.kl_div.target_kl,
        reward_weights={part.get("name", part["id"]): part.get("weight", 1.0) for part in parts},
        max_turns=config.env.args.max_turns,
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
