"""docs/troubleshooting.md names every warning and every check of the doctor."""

import re
from pathlib import Path

from rl4dialog.features.inspection.examination import CHECKS as EXAMINED
from rl4dialog.features.inspection.watch import CHECKS as WATCHED

PAGE = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def names_under(heading):
    """First cells of the table of a section."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_checks_of_the_doctor_are_told_in_their_order():
    assert names_under("Before a run") == list(EXAMINED)


def test_warnings_are_told_in_their_order():
    assert names_under("During a run") == [check.name for check in WATCHED]
