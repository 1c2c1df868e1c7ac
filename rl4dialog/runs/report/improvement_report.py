"""``report.html`` of an improvement by feedback: what was done, and the model before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.runs.report.changes import MetricChange, before_and_after, described, metric_changes
from rl4dialog.runs.report.page import write_page
from rl4dialog.runs.report.repeats import repeated_keys
from rl4dialog.runs.report.run_report import run_content, sample_set
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.report.statistics import MIN_SAMPLES
from rl4dialog.runs.results import run_state
from rl4dialog.scores.reward_models import KEY as SCORE

CORRECTED = "corrections"
"""Split of the comparison: corrected replies, whose references are the corrections."""
LOSS, KL = "loss/reference", "kl/per_token"
"""Metrics that only a comparison has."""
_LABELS = ("before", "after")
_FIRST = (SCORE, "reward", "length/words", LOSS, KL)
_N_NAMED = 4  # metrics that a sentence names


def write_improvement_report(comparison: Path, output: Path, facts: Mapping[str, str]) -> Path:
    """Write the report.

    Args:
        comparison: Run folder of the comparison: evaluation 0 is the model before, 1 the one after.
        output: The output file.
        facts: What was done, by name.

    Returns:
        The path of the page.
    """
    run = read_run(comparison)
    content = run_content(run, run_state(run.path), _LABELS)
    content["facts"] = list(facts.items())
    found = [*content["changes"], *content["other_changes"]]
    content["changes"] = [change for key in _FIRST for change in found if change.key == key]
    content["other_changes"] = [change for change in found if change.key not in _FIRST]
    before, after = before_and_after(run, CORRECTED)
    known = {label: each for label, each in zip(_LABELS, (before, after), strict=True) if each is not None}
    changes = metric_changes(run, CORRECTED, before, after) if run.epochs(CORRECTED) else []
    return write_page(
        "improvement.html",
        output,
        **content,
        title=f"{output.parent.name}",
        corrected=sample_set(CORRECTED, known) if known else None,
        corrected_changes=described(changes, {}, run.config),
    )


def effects(comparison: Path) -> str:
    """Say which metrics of the test prompts changed significantly, and in which direction.

    Args:
        comparison: As for :func:`write_improvement_report`.
    """
    run = read_run(comparison)
    evaluations = before_and_after(run, "test")
    n_samples = len(evaluations[1] or ())
    if n_samples < MIN_SAMPLES:
        return f"no verdict, which takes at least {MIN_SAMPLES} test prompts; there are {n_samples}"
    repeats = repeated_keys([each for each in evaluations if each is not None])
    changes = described(metric_changes(run, "test", *evaluations), repeats, run.config)
    better, worse = ([each for each in changes if each.effect == effect] for effect in ("better", "worse"))
    if not better and not worse:
        return "no metric changed significantly on the test prompts"
    found = f"significantly better: {_names(better)}; significantly worse: {_names(worse)}"
    return found if better else f"{found}. The model before is the better one"


def _names(changes: Sequence[MetricChange]) -> str:
    keys = sorted((each.key for each in changes), key=lambda key: key not in _FIRST)
    n_more = len(keys) - _N_NAMED
    return ", ".join(keys[:_N_NAMED]) + (f" and {n_more} more" if n_more > 0 else "") if keys else "nothing"
