"""docs/troubleshooting.md has errors as the code words them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_errors_are_worded_as_in_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.split("\n## Errors", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rl4dialog").rglob("*.py"))
    assert len(rows) >= 10
    assert not [text for row in rows for text in re.findall("`([^`]+)`", row) if text not in source]
