from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rated import conversation, write_dstc9, write_lines

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.types import AGENT
from rl4dialog.data.public_datasets import prepare_dataset
from rl4dialog.data.ratings import load_ratings


def test_rated_dialogues_are_read_with_gaps(tmp_path: Path) -> None:
    rows = [
        conversation("a", "b", ratings={"good": 2, "kind": None}, id="x", system="bot"),
        conversation("c", "d"),
        conversation("e", "f", ratings={"kind": 1}),
    ]
    unit, (first, last) = load_ratings(write_lines(tmp_path / "r.jsonl", rows))
    assert (unit, first.ratings, last.ratings) == ("dialogue", {"good": 2.0}, {"kind": 1.0})
    assert (first.conversation, first.system, last.conversation) == ("x", "bot", 2)


def test_rated_replies_end_with_the_reply(tmp_path: Path) -> None:
    row = conversation("a", "b", "c", "d", id=7)
    row["messages"][3]["ratings"] = {"good": 5}
    row["messages"].insert(0, {"role": "system", "content": "Be kind."})
    unit, (rated,) = load_ratings(write_lines(tmp_path / "r.jsonl", [row]))
    assert (unit, rated.conversation) == ("reply", 7)
    assert rated.dialogue.texts(AGENT) == ["d"]
    assert [turn.text for turn in rated.dialogue.turns] == ["a", "b", "c", "d"]
    assert rated.dialogue.meta_data == {"persona": "Be kind."}


def test_source_with_both_kinds_needs_a_choice(tmp_path: Path) -> None:
    row = conversation("a", "b", ratings={"good": 1})
    row["messages"][1]["ratings"] = {"good": 5}
    path = write_lines(tmp_path / "r.jsonl", [row])
    with pytest.raises(DataError, match="both dialogues and replies; choose one"):
        load_ratings(path)
    assert load_ratings(path, "reply")[1][0].ratings == {"good": 5.0}
    assert load_ratings(path, "dialogue")[1][0].ratings == {"good": 1.0}


def test_feedback_is_read_with_the_last_rating_of_a_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, reply = tmp_path / "feedback.jsonl", JudgedReply("run", "hi")
    for rating in (1, -1):
        append_feedback(path, Feedback("rating", ["hello"], [reply], rating=rating))
    append_feedback(path, Feedback("correction", ["hello"], [reply], correction="good morning"))
    unit, (rated,) = load_ratings(path)
    assert (unit, rated.ratings, rated.system) == ("reply", {"rating": -1.0}, "run")
    assert "1 correction: only ratings are read here; the datapool feedback reads all" in caplog.text


def test_feedback_has_ratings_of_replies_and_conversations(tmp_path: Path) -> None:
    path, reply = tmp_path / "feedback.jsonl", JudgedReply("run", "hi")
    append_feedback(path, Feedback("rating", ["hello"], [reply], rating=1))
    append_feedback(path, Feedback("conversation_rating", ["hello"], [reply], rating=-1, answer="bye"))
    with pytest.raises(DataError, match="has ratings of both dialogues and replies"):
        load_ratings(path)
    _, (rated,) = load_ratings(path, "dialogue")
    assert [turn.text for turn in rated.dialogue.said] == ["hello", "hi", "bye"]
    assert (rated.ratings, rated.system) == ({"rating": -1.0}, "run")


def test_prepared_dataset_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="dstc9 is not in the cache; run this first: rl4dialog prepare dstc9"):
        load_ratings("dstc9")
    prepare_dataset("dstc9", write_dstc9(tmp_path / "files"))
    assert len(load_ratings("dstc9")[1]) == 4


def reply_rated(rating: Any, role: int = 1) -> dict[str, Any]:
    row = conversation("a", "b")
    row["messages"][role]["ratings"] = rating
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (conversation("a", "b"), "has no ratings of dialogues or replies"),
        (conversation("a", "b", ratings=[4]), r"r.jsonl:1: the ratings of the conversation must be an object"),
        (
            conversation("a", "b", ratings={"good": "4"}),
            "rating 'good' of the conversation must be a finite number",
        ),
        (conversation("a", "b", ratings={"good": True}), "must be a finite number or null, not True"),
        (conversation("a", "b", ratings={"good": float("nan")}), "must be a finite number or null, not nan"),
        (conversation("a", "b", ratings={"good": 10**400}), "must be a finite number or null, not 1000"),
        (conversation("a", "b", ratings={"good": 1}, id=[1]), r"r.jsonl:1: column 'id' must contain text, not \[1\]"),
        (conversation("a", "b", ratings={"good": 1}, system={}), "column 'system' must contain text, not {}"),
        (conversation("a", "\ud800", ratings={"good": 1}), "'content' of message 1 of messages is not valid Unicode"),
        (conversation("a", ratings={"good": 1}), "is rated, but has no message of the role assistant"),
        (reply_rated({"good": 1}, role=0), r"message 0 has ratings, but is not a reply \(role: user\)"),
        ({"messages": [{"role": "tool", "content": "x"}], "ratings": {"a": 1}}, "role 'tool' are not supported"),
        ({"ratings": {"good": 1}}, "no column 'messages'"),
    ],
)
def test_malformed_line_is_an_error(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_ratings(write_lines(tmp_path / "r.jsonl", [row]))


def test_system_and_id_can_be_numbers_or_null(tmp_path: Path) -> None:
    rows = [conversation("a", "b", ratings={"good": 1}, id=id, system=id) for id in ("x", 7, None)]
    rated = load_ratings(write_lines(tmp_path / "r.jsonl", rows))[1]
    assert [(each.conversation, each.system) for each in rated] == [("x", "x"), (7, "7"), (2, None)]


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_ratings(tmp_path / "nothing.jsonl")
