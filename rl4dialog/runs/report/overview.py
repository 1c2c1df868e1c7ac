"""The top of a report: state, date, duration and device of the run, key facts, warnings, and what is missing."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from rl4dialog.core.config_blocks import TEXT_GENERATION
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.reading import Run, as_text, number
from rl4dialog.runs.report.curves import MIN_ITERATIONS, PHASES
from rl4dialog.runs.run_folder import LOG_FILE

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (\w+) (\S+): (.*)")
NOT_WRITTEN = "the report of the run could not be written"
"""Beginning of a warning that the report leaves out: whoever reads it has it."""
_WATCH = re.compile(r"iteration \d+: ")


class Warning(NamedTuple):
    """A warning of a run; ``advice`` is empty if there is none."""

    message: str
    advice: str = ""


def subtitle(run: Run, state: str) -> list[str]:
    """State, date, duration and device of a run, as far as they are known."""
    times = [time for time, *_ in _log_lines(run)]
    seconds = (max(times) - min(times)).total_seconds() if times else 0.0
    n_resumed = len(_listed(run.provenance.get("resumed")))
    again = {0: "", 1: ", resumed once"}.get(n_resumed, f", resumed {n_resumed} times")
    duration = f"{_clock(seconds)}{', pauses included' if n_resumed else ''}" if seconds else ""
    date = ""
    with suppress(ValueError):
        start = datetime.fromisoformat(str(run.provenance.get("start_time")))
        date = f"{start.day} {start:%B %Y, %H:%M} {start.tzname() or ''}".strip()
    return [part for part in (f"{state}{again}", date, duration, _device(run)) if part]


def run_warnings(run: Run) -> list[Warning]:
    """The warnings of a run's checks, with advice, then all others in its log, each once."""
    watched = [
        Warning(f"Iteration {each.get('iteration')}: {each.get('message')}", str(each.get("advice") or ""))
        for each in run.warnings
    ]
    logged = [Warning(text) for _, level, text in _log_lines(run) if level in ("WARNING", "ERROR")]
    logged = [each for each in logged if not each.message.startswith(NOT_WRITTEN)]
    return list(dict.fromkeys([*watched, *(each for each in logged if not watched or not _WATCH.match(each.message))]))


def missing(run: Run, split: str, state: str) -> list[str]:
    """Say what the report of a run does not have, and why."""
    notes = []
    done, planned = _progress(run)
    so_far = f"after iteration {done}" + (f" of {planned}" if planned else "") if run.iterations else "at its beginning"
    if state == "running":
        notes.append(f"The run is still running; this is its state {so_far}.")
    elif state == "stopped":
        notes.append(f"The run is not complete: it stopped {so_far}. To continue it, repeat its command with --resume.")
    if not run.epochs(split):
        notes.append("There are no evaluations, so the report has no metrics and no samples.")
    elif len(run.epochs(split)) == 1:
        notes.append(f"The {split} split was evaluated only once, so there is no comparison.")
    elif split != "test":
        notes.append(f"The test split was not evaluated after training; metrics and samples are those of {split}.")
    if 0 < len(run.iterations) < MIN_ITERATIONS:
        notes.append(f"Curves require at least {MIN_ITERATIONS} iterations.")
    return notes


def facts(run: Run) -> list[tuple[str, str]]:
    """The key facts of a run, by name."""
    config = flatten(run.config)
    env_id = config.get("env.id")
    found: list[tuple[str, Any]] = [
        ("algorithm", config.get("alg.id")),
        ("model", config.get("alg.policy.args.model_name") or config.get("alg.model_name")),
        ("datapool", config.get("datapool.id")),
        ("environment", env_id if env_id != TEXT_GENERATION else None),
        ("reward", config.get("reward_fn.id")),
        ("seed", config.get("seed")),
        *(_iteration_facts(run) if run.iterations else ()),
        *((key, f"{number(value):,.5g}") for key, value in run.training.items()),
    ]
    return [(name, as_text(value)) for name, value in found if value not in (None, "")]


def _iteration_facts(run: Run) -> list[tuple[str, str]]:
    done, planned = _progress(run)
    keys = ("rollout/tokens", "rollout/timesteps", *PHASES)
    tokens, timesteps, *times = (sum(v for v in run.column(key) if not math.isnan(v)) for key in keys)
    seconds = sum(times)
    found = [
        ("iterations", f"{done} of {planned}" if planned else f"{done}"),
        ("agent tokens", f"{tokens:,.0f}" if tokens else ""),
        ("timesteps", f"{timesteps:,.0f}" if timesteps else ""),
        ("time in iterations", _clock(seconds) if seconds else ""),
    ]
    rewards = zip(run.column("rollout/task_reward"), run.column("iteration"), strict=True)
    known = [(reward, iteration) for reward, iteration in rewards if not math.isnan(reward)]
    if known:
        best, iteration = max(known)
        found.append(("task reward, first to last iteration", f"{known[0][0]:.3f} → {known[-1][0]:.3f}"))
        found.append(("highest task reward", f"{best:.3f} (iteration {iteration:.0f})"))
    kl = run.column("rollout/kl")[-1]
    if not math.isnan(kl):
        found.append(("KL at the end", f"{kl:.3f} nats/token"))
    return found


def _progress(run: Run) -> tuple[int, Any]:
    """Number of iterations so far, and of those that the config asks for."""
    done = int(run.iterations[-1]["iteration"]) if run.iterations else 0
    return done, flatten(run.config).get("train_evaluation.n_iters")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _device(run: Run) -> str:
    """The device of a run, from its config and hardware."""
    hardware = run.provenance.get("hardware")
    if not isinstance(hardware, dict):
        return ""
    gpus = [str(gpu.get("name")) for gpu in _listed(hardware.get("gpus")) if isinstance(gpu, dict)]
    if gpus and flatten(run.config).get("alg.args.device") != "cpu":
        processes = number(hardware.get("processes"))
        return f"{processes:.0f} processes, {gpus[0]}" if processes > 1 else gpus[0]
    threads = hardware.get("torch_threads")
    return f"CPU {hardware.get('cpu') or ''}".strip() + (f", {threads} threads" if threads != 1 else ", 1 thread")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _log_lines(run: Run) -> list[tuple[datetime, str, str]]:
    """Time, level and message of the lines of ``log.txt``; empty if it cannot be read."""
    try:
        text = (run.path / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = (match for line in text.split("\n") if (match := _LOG_LINE.match(line)))
    return [(datetime.fromisoformat(match[1]), match[2], match[4]) for match in found]
