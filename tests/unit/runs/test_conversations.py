"""Conversations in records: what is written is what is read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from run_files import game

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs.conversations import changed_conversations, conversation_record, ending, recorded_conversation
from rl4dialog.runs.run_folder import to_plain

DIALOGUE = Dialogue(
    "7",
    (
        *(Turn("guess what", PARTNER), Turn("a reply of the sample", AGENT, reward=9.0)),
        *(Turn("is it a dog ?", AGENT, reward=-0.05), Turn("no", PARTNER), Turn("", AGENT, reward=0.95)),
    ),
    n_given=2,
    outcome={"success": 1.0},
    ended_by="partner",
)


def test_record_has_speakers_texts_rewards_and_what_was_given() -> None:
    assert conversation_record(DIALOGUE) == {
        "turns": [
            {"speaker": "partner", "text": "guess what", "given": True},
            {"speaker": "agent", "text": "a reply of the sample", "given": True},
            {"speaker": "agent", "text": "is it a dog ?", "reward": -0.05},
            {"speaker": "partner", "text": "no"},
            {"speaker": "agent", "text": "", "reward": 0.95},
        ],
        "outcome": {"success": 1.0},
        "ended_by": "partner",
    }


@pytest.mark.parametrize("dialogue", [DIALOGUE, Dialogue("7", ()), Dialogue("7", DIALOGUE.turns[:2], n_given=2)])
def test_record_is_read_back_from_json(dialogue: Dialogue) -> None:
    record = json.loads(json.dumps({"sample_id": 7, **conversation_record(dialogue)}))
    found = recorded_conversation(record)
    assert found is not None and conversation_record(found) == conversation_record(dialogue)
    assert (found.id, found.n_given, found.ended_by) == ("7", dialogue.n_given, dialogue.ended_by)


def test_numbers_that_were_not_finite_are_unknown() -> None:
    dialogue = Dialogue("7", (Turn("a", AGENT, reward=math.inf),), outcome={"success": math.nan, "score": 2.0})
    found = recorded_conversation(json.loads(json.dumps(to_plain(conversation_record(dialogue)))))
    assert found is not None and math.isnan(found.turns[0].reward) and found.outcome == {"score": 2.0}


def test_single_reply_is_no_conversation() -> None:
    assert recorded_conversation({"prompt_text": "a", "generated_text": "b"}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": "a b"}, "needs turns"),
        ({"outcome": None}, "needs turns"),
        ({"ended_by": "nobody"}, "ended_by"),
        ({"turns": [{"speaker": "agent"}]}, "a speaker .partner or agent. and a text"),
        ({"turns": [{"speaker": "user", "text": "a"}]}, "a speaker .partner or agent."),
        ({"turns": ["a"]}, "a speaker"),
        ({"turns": [{"speaker": "agent", "text": "a"}, {"speaker": "partner", "text": "b", "given": True}]}, "first"),
    ],
)
def test_other_forms_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recorded_conversation({**conversation_record(DIALOGUE), **change})


def test_ending_tells_cause_and_outcome() -> None:
    assert ending(DIALOGUE) == "ended by the partner; success 1"
    assert ending(Dialogue("x", (), outcome={"success": 0.0, "score": 1 / 3})) == "success 0; score 0.3333"
    assert ending(Dialogue("x", (), ended_by="max_turns")) == "ended after max_turns"
    assert ending(Dialogue("x", ())) == ""


def test_conversations_that_changed_are_selected_evenly() -> None:
    before = [game(i, ("old", "yes")) for i in range(9)]
    after = [game(i, ("old" if i % 2 else "new", "yes")) for i in range(9)]
    found = changed_conversations(before, after, n=2)
    assert [(old.id, old.texts(AGENT), new.texts(AGENT)) for old, new in found] == [
        ("0", ["old"], ["new"]),
        ("4", ["old"], ["new"]),
    ]
    assert changed_conversations(before, before, n=2) == []
    assert changed_conversations([{"generated_text": "a"}], [{"generated_text": "b"}], n=2) == []
