"""docs/troubleshooting.md names every warning and every check of the doctor, and errors as the code words them."""

import re
from pathlib import Path

from rl4dialog.training.doctor.examination import CHECKS as EXAMINED
from rl4dialog.training.watch import CHECKS as WATCHED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def names_under(heading):
    """First cells of the table of a section."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_checks_of_the_doctor_are_told_in_their_order():
    assert names_under("Before a run") == list(EXAMINED)


def test_warnings_are_told_in_their_order():
    assert names_under("During a run") == [check.name for check in WATCHED]


def test_errors_are_worded_as_in_the_code():
    section = PAGE.split("\n## Errors", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rl4dialog").rglob("*.py"))
    assert len(rows) >= 10
    assert not [text for row in rows for text in re.findall("`([^`]+)`", row) if text not in source]
