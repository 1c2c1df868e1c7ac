"""The tables that say what of other systems is taken in count right, and name tests and configs that exist."""

import re
from collections import Counter

import pytest
from pages import ROOT, text_of

SYSTEMS = ("rl4lms", "openrl", "convogym", "convlab2", "ilql")


@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_are_counted_and_shown(system):
    page = text_of(f"docs/coming_from/{system}.md")
    rows = re.findall(r"^\| (.+) \| (yes|differs|no) \| (.+) \| (.*?) ?\|$", page, re.MULTILINE)
    counts = Counter(taken for _, taken, _, _ in rows)
    assert [int(n) for n in re.search(r"(\d+) yes,\s(\d+)\sdiffer,\s(\d+)\sno", page).groups()] == [
        counts[each] for each in ("yes", "differs", "no")
    ]
    assert len({name for name, *_ in rows}) > 10
    for name, taken, here, shown in rows:
        assert here and (taken == "no") != bool(shown), name
        for file in re.findall(r"`(.+?)`", shown):
            assert (ROOT / ("" if file.startswith("task_configs") else "tests") / file).is_file(), (name, file)
