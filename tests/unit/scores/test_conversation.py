"""Numbers of conversations that can be counted by hand."""

import math

import pytest

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.scores.conversation import ConversationMetric

GIVEN = (Turn("hello there", PARTNER), Turn("a reply of the sample", AGENT, reward=9.0), Turn("what is it", PARTNER))
WON = Dialogue(
    "won",
    (*GIVEN, Turn("is it alive", AGENT, reward=-0.5), Turn("yes", PARTNER), Turn("a dog", AGENT, reward=0.75)),
    n_given=3,
    outcome={"success": 1.0, "score": 3.0},
    ended_by="partner",
)
LOST = Dialogue(
    "lost",
    (Turn("", AGENT, reward=0.25), Turn("what", PARTNER), Turn("x y z", AGENT), Turn("no", PARTNER)),
    outcome={"success": 0.0},
    ended_by="max_turns",
)
SILENT = Dialogue("silent", GIVEN, n_given=3, ended_by="agent")
OPEN = Dialogue("open", (Turn("a b", AGENT, reward=0.5),))


def measure(*dialogues):
    found = ConversationMetric().compute(list(dialogues))
    return {key.removeprefix("conversation/"): (scores or [], corpus) for key, (scores, corpus) in found.items()}


def test_only_what_was_said_in_the_conversation_counts():
    found = measure(WON, LOST, SILENT, OPEN)
    assert found["turns"] == ([2, 2, 0, 1], 5 / 4)
    assert found["return"] == ([0.25, 0.25, 0, 0.5], 0.25)
    scores, corpus = measure(WON, LOST, SILENT, OPEN)["words"]
    assert scores[:2] == [2.5, 1.5] and math.isnan(scores[2]) and scores[3] == 2
    assert corpus == 2


def test_outcomes_are_averaged_over_those_that_report_them():
    found = measure(WON, SILENT, LOST)
    assert found["success"][0] == pytest.approx([1, math.nan, 0], nan_ok=True) and found["success"][1] == 0.5
    assert found["score"][0] == pytest.approx([3, math.nan, math.nan], nan_ok=True) and found["score"][1] == 3
    assert "success" not in measure(SILENT)
    assert measure(Dialogue("x", (), outcome={"turns": 99.0}))["turns"] == ([0], 0)


def test_ends_are_shares_of_the_conversations_that_ended():
    found = measure(WON, LOST, SILENT, OPEN)
    ends = {key: corpus for key, (_, corpus) in found.items() if key.startswith("ended_by_")}
    assert ends == {f"ended_by_{cause}": 1 / 3 for cause in ("agent", "partner", "max_turns")} | {"ended_by_length": 0}
    assert math.isnan(measure(OPEN)["ended_by_agent"][1])


def test_standard_error_of_the_return_is_that_of_its_mean():
    found = measure(WON, LOST, SILENT, OPEN)  # returns 0.25, 0.25, 0, 0.5
    assert found["return_se"] == ([], pytest.approx(math.sqrt(0.125 / 3) / 2))
    assert "return_se" not in measure(WON)
