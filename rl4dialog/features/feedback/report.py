"""The report of an improvement, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.metrics import before_and_after, metric_changes, repeated_keys
from rl4dialog.runs.report.pages import run_content, write_page
from rl4dialog.runs.report.samples import sample_set
from rl4dialog.runs.run_folder import run_state
from rl4dialog.scores.reward_models import KEY as SCORE

_LABELS = ("before", "after")
CORRECTED = "corrections"
"""Split of the comparison: corrected replies, whose references are the corrections."""
LOSS, KL = "loss/reference", "kl/per_token"
"""Metrics that only a comparison has."""
_IMPORTANT = (SCORE, "reward", "length/words", LOSS, KL)
_N_NAMED = 4  # metrics that a sentence names


def write_improvement_report(comparison: Path, output: Path, result: str, about: Mapping[str, str]) -> Path:
    """Write an improvement's report; evaluation 0 of the comparison is the model before, and 1 after it."""
    run = read_run(comparison)
    content = run_content(run, run_state(run.path), _LABELS)
    found = [*content["changes"], *content["other_changes"]]
    evaluations = before_and_after(run, CORRECTED)
    known = {label: each for label, each in zip(_LABELS, evaluations, strict=True) if each is not None}
    content |= {
        "verdict": result,
        "facts": list(about.items()),
        "changes": [change for key in _IMPORTANT for change in found if change.key == key],
        "other_changes": [change for change in found if change.key not in _IMPORTANT],
        "title": output.parent.name,
        "corrected": sample_set(CORRECTED, known) if known else None,
        "corrected_changes": metric_changes(run, CORRECTED, *evaluations),
    }
    return write_page(Path(__file__).with_name("improvement.html"), output, **content)


def effects(comparison: Path) -> str:
    """Say which metrics of the test prompts of a comparison changed significantly, and in which direction."""
    run = read_run(comparison)
    evaluations = before_and_after(run, "test")
    n_samples = len(evaluations[1] or ())
    if n_samples < MIN_SAMPLES:
        return f"no verdict, which takes at least {MIN_SAMPLES} test prompts; there are {n_samples}"
    repeats = repeated_keys([each for each in evaluations if each is not None])
    changes = metric_changes(run, "test", *evaluations, repeats)
    better, worse = ([each.key for each in changes if each.effect == effect] for effect in ("better", "worse"))
    if not better and not worse:
        return "no metric changed significantly on the test prompts"
    found = f"significantly better: {_names(better)}; significantly worse: {_names(worse)}"
    return found if better else f"{found}. The model before is the better one"


def _names(keys: Sequence[str]) -> str:
    keys = sorted(keys, key=lambda key: key not in _IMPORTANT)
    n_more = len(keys) - _N_NAMED
    return ", ".join(keys[:_N_NAMED]) + (f" and {n_more} more" if n_more > 0 else "") if keys else "nothing"
