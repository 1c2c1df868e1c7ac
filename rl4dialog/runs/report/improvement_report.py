"""``report.html`` of an improvement by feedback: what was done, and the model before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl4dialog.runs.report.changes import metric_changes
from rl4dialog.runs.report.page import write_page
from rl4dialog.runs.report.predictions import pair
from rl4dialog.runs.report.run_report import before_and_after, run_content
from rl4dialog.runs.report.runs import Run, read_run

CORRECTED = "corrections"
"""Split of the comparison: corrected replies, whose references are the corrections."""


@dataclass(frozen=True)
class CorrectedReply:
    """Replies to the utterances before a corrected reply."""

    turns: list[str]
    correction: str
    before: str
    after: str


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
    content = run_content(run)
    content["facts"] = list(facts.items())
    changes = metric_changes(run, CORRECTED, *before_and_after(run, CORRECTED)) if run.epochs(CORRECTED) else []
    return write_page(
        "improvement.html",
        output,
        **content,
        title=f"{output.parent.name}",
        corrected=_corrected_replies(run),
        corrected_changes=changes,
    )


def _corrected_replies(run: Run) -> list[CorrectedReply]:
    before, after = before_and_after(run, CORRECTED)
    if before is None or after is None:
        return []
    before, after = pair(before, after)
    rows = zip(before.utterances, before.references, before.replies, after.replies, strict=True)
    return [CorrectedReply(turns, " / ".join(references), *replies) for turns, references, *replies in rows]
