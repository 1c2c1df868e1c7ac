"""The tables that say what of other systems is taken in count right, and name tests and configs that exist."""

import re
import runpy
import sys
from collections import Counter

import pytest
from pages import EXAMPLES, ROOT, text_of

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


def test_loop_of_convlab2_trains_a_policy_and_prints_its_metrics(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["own_dialogue_policy.py", "150", "1", "64"])
    found = runpy.run_path(str(EXAMPLES / "own_dialogue_policy.py"))
    printed = capsys.readouterr().out
    assert re.search(r"^epoch 0: mean return -?\d", printed, re.MULTILINE)
    for name in ("inform_f1", "book", "complete", "success"):
        assert f"{name}: {found['scores'][f'task/convlab2/{name}']:.3f}\n" in printed
    assert 0.1 < found["scores"]["task/convlab2/inform_f1"] < 1, "it has imitated dialogues, for a short time"
    assert re.search(r"^turns: \d", printed, re.MULTILINE)
    s, a, r = found["policy"].sample(40)
    assert len(s) == len(a) == len(r) >= 40 and set(a.unique().tolist()) == {0, 1}
