"""``report.html`` of one run."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.config_blocks import TEXT_GENERATION
from rl4dialog.core.mappings import flatten
from rl4dialog.runs.report.advantages import extreme_utterances
from rl4dialog.runs.report.changes import MetricChange, metric_changes
from rl4dialog.runs.report.curves import (
    MIN_ITERATIONS,
    PHASES,
    Panel,
    evaluation_curves,
    iteration_curve,
    panels,
    remaining_keys,
)
from rl4dialog.runs.report.failures import failure_counts
from rl4dialog.runs.report.figures import histogram, line_chart, stacked_chart
from rl4dialog.runs.report.page import Picture, write_page
from rl4dialog.runs.report.predictions import Predictions, pair
from rl4dialog.runs.report.runs import Run, as_text, number, read_run
from rl4dialog.runs.report.samples import REWARD_KEY, choose_samples, ranking_key, sort_keys
from rl4dialog.runs.run_folder import REPORT_FILE
from rl4dialog.runs.summary import is_headline

_DISTRIBUTIONS = {
    REWARD_KEY: "Reward",
    "episode/return": "Return",
    "conversation/return": "Return",
    "conversation/turns": "Turns of the agent",
}

_logger = logging.getLogger(__name__)


def write_report(run_path: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of a run, finished or not.

    Args:
        run_path: The run folder.
        output: The output file; by default ``report.html`` in the run folder.

    Returns:
        The path of the page.

    Raises:
        DataError: If the folder is not a run folder, or one of its files cannot be read.
        RunFolderError: If the page cannot be written.
    """
    run = read_run(run_path)
    return write_page("run.html", Path(output).expanduser() if output else run.path / REPORT_FILE, **run_content(run))


def run_content(run: Run) -> dict[str, Any]:
    """What the template of a run shows, by the names of its variables."""
    split = _shown_split(run)
    before, after = before_and_after(run, split)
    changes = metric_changes(run, split, before, after)
    if before is not None and after is not None:
        before, after = pair(before, after)
    drawn = panels([run])
    shown = [each for each in (before, after) if each is not None]
    shown_texts = any(each.has_texts for each in shown)
    of = "conversations" if any(each.has_conversations for each in shown) else "replies" if shown_texts else "episodes"
    samples = choose_samples(before, after) if of != "episodes" else []
    return dict(
        run=run,
        facts=_facts(run),
        notes=[*run.notes, *_missing(run, split)],
        split=split,
        times=_times(run, split),
        n_samples=len(after or before or ()),
        of=of,
        players=run.players if split == "test" else {},
        changes=[change for change in changes if _is_shown(change)],
        other_changes=[change for change in changes if not _is_shown(change)],
        curves=_curve_pictures(run, drawn),
        evaluations=_evaluation_pictures(run),
        distributions=_distributions(before, after, of),
        remaining=_remaining(run, drawn),
        samples=samples,
        utterances=extreme_utterances(after or before),
        failures=failure_counts(before, after, samples),
        sort_keys=sort_keys(before, after),
        ranking_key=ranking_key(sort_keys(before, after)),
        shown_keys=[key for key in sort_keys(before, after) if is_headline(key)],
        provenance={key: as_text(value) for key, value in flatten(run.provenance).items()},
    )


def write_report_or_warn(run_path: str | Path) -> None:
    """Write the report of a run that has just ended; a failure is only a warning."""
    try:
        write_report(run_path)
    except Exception as error:
        _logger.warning(
            "the report of the run could not be written (%s: %s); to retry: rl4dialog report %s",
            type(error).__name__,
            error,
            run_path,
        )


def _shown_split(run: Run) -> str:
    """The split that shows the effect of training: ``test``, unless only another one was evaluated twice."""
    splits = [split for split in ("test", "val", *sorted(run.metrics)) if run.epochs(split)]
    return next((split for split in splits if len(run.epochs(split)) > 1), splits[0] if splits else "test")


def before_and_after(run: Run, split: str) -> tuple[Predictions | None, Predictions | None]:
    """Predictions of the first and the last evaluation of a split."""
    epochs = run.epochs(split)
    if not epochs:
        return None, None
    return run.predictions(split, epochs[0]), run.predictions(split, epochs[-1]) if len(epochs) > 1 else None


def _times(run: Run, split: str) -> str:
    """Describe when a split was evaluated."""
    epochs = run.epochs(split)
    if len(epochs) < 2:
        return "before training" if epochs == [0] else ""
    first = "before training" if epochs[0] == 0 else f"after {epochs[0]} iterations"
    return f"{first} and after " + ("it" if run.training else f"{epochs[-1]} iterations")


def _missing(run: Run, split: str) -> list[str]:
    notes = []
    if not run.epochs(split):
        notes.append("There are no evaluations, so the report has no metrics and no samples.")
    elif len(run.epochs(split)) == 1:
        notes.append(f"The {split} split was evaluated only once, so there is no comparison.")
    elif split != "test":
        notes.append(f"The test split was not evaluated after training; metrics and samples are those of {split}.")
    if len(run.iterations) < MIN_ITERATIONS and not run.training:
        notes.append(f"Curves require at least {MIN_ITERATIONS} iterations.")
    return notes


def _facts(run: Run) -> list[tuple[str, str]]:
    """The key facts at the top of the page."""
    alg = run.config.get("alg") or {}
    args = (alg.get("policy") or {}).get("args") or {}
    env_id = (run.config.get("env") or {}).get("id")
    facts = [
        ("algorithm", alg.get("id")),
        ("model", args.get("model_name") or alg.get("model_name")),
        ("datapool", (run.config.get("datapool") or {}).get("id")),
        ("environment", env_id if env_id != TEXT_GENERATION else None),
        ("reward", (run.config.get("reward_fn") or {}).get("id")),
        ("seed", run.config.get("seed")),
        *(_iteration_facts(run) if run.iterations else ()),
        *((key, f"{number(value):,.5g}") for key, value in run.training.items()),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _iteration_facts(run: Run) -> list[tuple[str, str]]:
    planned = (run.config.get("train_evaluation") or {}).get("n_iters")
    tokens, timesteps = (_total(run, key) for key in ("rollout/tokens", "rollout/timesteps"))
    seconds = sum(_total(run, phase) for phase in PHASES)
    done = int(run.iterations[-1]["iteration"])
    facts = [
        ("iterations", f"{done} of {planned}" if planned else f"{done}"),
        ("agent tokens", f"{tokens:,.0f}" if tokens else ""),
        ("timesteps", f"{timesteps:,.0f}" if timesteps else ""),
        ("time in iterations", f"{_clock(seconds)}" if seconds else ""),
    ]
    rewards = zip(run.column("rollout/task_reward"), run.column("iteration"), strict=True)
    known = [(reward, iteration) for reward, iteration in rewards if not math.isnan(reward)]
    if known:
        best, iteration = max(known)
        facts.append(("task reward, first to last iteration", f"{known[0][0]:.3f} → {known[-1][0]:.3f}"))
        facts.append(("highest task reward", f"{best:.3f} (iteration {iteration:.0f})"))
    kl = run.column("rollout/kl")[-1]
    if not math.isnan(kl):
        facts.append(("KL at the end", f"{kl:.3f} nats/token"))
    return facts


def _total(run: Run, key: str) -> float:
    return sum(value for value in run.column(key) if not math.isnan(value))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _curve_pictures(run: Run, drawn: Sequence[Panel]) -> list[Picture]:
    if len(run.iterations) < MIN_ITERATIONS:
        return []
    pictures = []
    config = flatten(run.config)
    for panel in drawn:
        curves = [iteration_curve(run, panel, label, key) for label, key in panel.keys.items()]
        target = config.get(panel.target)
        svg = line_chart(panel.title, curves, None if target is None else number(target))
        unit = panel.unit + (f"; dashed: target {target:g}" if target is not None else "")
        pictures.append(Picture(panel.title, unit, svg, list(panel.keys) if panel.has_legend else []))
    layers = {phase: run.column(phase) for phase in PHASES if any(phase in row for row in run.iterations)}
    if layers:
        svg = stacked_chart("Time per phase", run.column("iteration"), list(layers.values()))
        labels = [phase.removeprefix("time/").removesuffix("_s") for phase in layers]
        pictures.append(Picture("Time per phase", "seconds per iteration", svg, labels))
    return pictures


def _evaluation_pictures(run: Run) -> list[Picture]:
    """Metrics during training, of the split that was evaluated most often."""
    split = max(("val", *run.metrics), key=lambda name: len(run.metrics.get(name, {})))
    if len(run.metrics.get(split, {})) < 3:
        return []
    return [
        Picture(curve.label, f"{split} split", line_chart(curve.label, [curve], smoothed=False))
        for curve in evaluation_curves(run, split)
    ]


def _distributions(before: Predictions | None, after: Predictions | None, of: str) -> list[Picture]:
    """Rewards and lengths of all evaluated replies, or returns of all conversations or episodes."""
    known = {label: each for label, each in (("before", before), ("after", after)) if each is not None}
    pictures = []
    for key, title in _DISTRIBUTIONS.items():
        if known and all(key in each.scores for each in known.values()):
            values = {label: each.scores[key] for label, each in known.items()}
            pictures.append(Picture(title, f"share of {of}", histogram(title, values), list(known)))
    if any(each.has_texts for each in known.values()):
        lengths = {label: each.reply_lengths() for label, each in known.items()}
        title = "Reply length in words"
        pictures.append(Picture(title, "share of replies", histogram(title, lengths), list(known)))
    return pictures


def _remaining(run: Run, drawn: Sequence[Panel]) -> list[dict[str, Any]]:
    """First, last, minimum and maximum of the logged numbers that no plot shows."""
    keys = {*PHASES, *(key for panel in drawn for key in panel.keys.values())}
    rows = []
    for key in remaining_keys(run, keys if len(run.iterations) >= MIN_ITERATIONS else ()):
        values = [value for value in run.column(key) if not math.isnan(value)]
        numbers = (values[0], values[-1], min(values), max(values))
        rows.append({"key": key, "numbers": [f"{value:.4g}" for value in numbers]})
    return rows


def _is_shown(change: MetricChange) -> bool:
    return is_headline(change.key)
