"""docs/troubleshooting.md names every warning and every check of the doctor, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from rl4dialog.training.doctor.examination import CHECKS as EXAMINED
from rl4dialog.training.watch.watcher import CHECKS as WATCHED

PAGE = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def names_under(heading: str) -> list[str]:
    """First cells of the table of a section."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_checks_of_the_doctor_are_told_in_their_order() -> None:
    assert names_under("Before a run") == list(EXAMINED)


def test_warnings_are_told_in_their_order() -> None:
    assert names_under("During a run") == [check.name for check in WATCHED]
