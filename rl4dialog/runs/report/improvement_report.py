"""``report.html`` of an improvement by feedback: what was done, and the model before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl4dialog.runs.report.changes import described, metric_changes
from rl4dialog.runs.report.page import write_page
from rl4dialog.runs.report.run_report import before_and_after, run_content, sample_set
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.results import run_state

CORRECTED = "corrections"
"""Split of the comparison: corrected replies, whose references are the corrections."""
_LABELS = ("before", "after")


def write_improvement_report(comparison: Path, output: Path, facts: Mapping[str, str]) -> Path:
    """Write the report.

    Args:
        comparison: Run folder of the comparison: evaluation 0 is the model before, 1 the one after.
        output: The output file.
        facts: What was done, by name.

    Returns:
        The path of the page.

    Raises:
        DataError: If the folder is not a run folder, or one of its files cannot be read.
        RunFolderError: If the page cannot be written.
    """
    run = read_run(comparison)
    content = run_content(run, run_state(run.path), _LABELS)
    content["facts"] = list(facts.items())
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
