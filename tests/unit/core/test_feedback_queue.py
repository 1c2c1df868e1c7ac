"""Queues of replies to judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from feedback_files import preference

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import JudgedReply
from rl4dialog.core.feedback_queue import QueuedReplies, queue_id, read_pairs, read_queue, write_queue

SINGLE = QueuedReplies("2", ["hello"], [JudgedReply("m", "a")], "i sing .")
WHOLE = QueuedReplies("3", ["hello"], [JudgedReply("m", "a")], is_conversation=True, answer="oh")
PAIR = QueuedReplies("1", ["hello"], [JudgedReply("m", "a"), JudgedReply("m", "b")], None, "gap", 0.5)


def test_queue_is_read_as_written(tmp_path: Path) -> None:
    write_queue(tmp_path / "q" / "queue.jsonl", [PAIR, SINGLE, WHOLE])
    assert read_queue(tmp_path / "q" / "queue.jsonl") == [PAIR, SINGLE, WHOLE]


def test_choice_in_any_order_judges_the_pair() -> None:
    assert PAIR.is_judged_by(PAIR.chosen(1)) and PAIR.is_judged_by(preference("b", "a", 0))
    assert not PAIR.is_judged_by(preference("a", "b", 0, ("hi",))) and not PAIR.is_judged_by(PAIR.corrected(0, "c"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "q.jsonl:1: version must be 1"),
        ({"replies": []}, "q.jsonl:1: a preference needs 2 in replies, not 0"),
        ({"replies": [{"model": "m", "text": "a"}], "turns": []}, "q.jsonl:1: turns must be a list of at least one"),
        ({"other": 1}, "q.jsonl:1: a line needs the keys answer, id, is_conversation, persona"),
        ({"is_conversation": True}, "q.jsonl:1: is_conversation must be true or false, and true only with one reply"),
        ({"is_conversation": "no"}, "q.jsonl:1: is_conversation must be true or false"),
        ({"is_conversation": True, "replies": [{"model": "m", "text": "a"}], "answer": 1}, "q.jsonl:1: answer must be"),
    ],
)
def test_invalid_lines_are_errors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "q.jsonl"
    write_queue(path, [PAIR])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        read_queue(path)


def test_empty_queue_is_an_error(tmp_path: Path) -> None:
    write_queue(tmp_path / "q.jsonl", [])
    with pytest.raises(DataError, match="has no replies to judge; rl4dialog select writes them"):
        read_queue(tmp_path / "q.jsonl")


def test_single_reply_is_judged_by_a_rating_or_a_correction() -> None:
    assert SINGLE.is_judged_by(SINGLE.rated(0, -1)) and SINGLE.is_judged_by(SINGLE.corrected(0, "b"))
    assert SINGLE.rated(0, -1).rating == -1 and SINGLE.rated(0, -1).persona == "i sing ."
    assert not SINGLE.is_judged_by(PAIR.rated(0, 1))  # another persona
    assert not PAIR.is_judged_by(PAIR.rated(0, 1)) and PAIR.is_pair and not SINGLE.is_pair


def test_single_replies_are_no_pairs(tmp_path: Path) -> None:
    write_queue(tmp_path / "q.jsonl", [PAIR])
    assert read_pairs(tmp_path / "q.jsonl") == [PAIR]
    write_queue(tmp_path / "q.jsonl", [PAIR, SINGLE])
    with pytest.raises(DataError, match="has more than pairs, but pairs are needed"):
        read_pairs(tmp_path / "q.jsonl")


def test_conversation_is_judged_by_a_rating_of_the_same_conversation_and_has_no_correction() -> None:
    reply = QueuedReplies("4", ["hello"], [JudgedReply("m", "a")])
    shorter = replace(WHOLE, answer=None)
    assert WHOLE.rated(0, 1).kind == "conversation_rating" and WHOLE.is_judged_by(WHOLE.rated(0, 1))
    for other in (reply, shorter):
        assert not WHOLE.is_judged_by(other.rated(0, 1)) and not other.is_judged_by(WHOLE.rated(0, 1))
    with pytest.raises(DataError, match="a whole conversation is rated up or down; only single replies can be corr"):
        WHOLE.corrected(0, "b")


def test_line_without_the_keys_of_conversations_is_a_reply(tmp_path: Path) -> None:
    write_queue(tmp_path / "q.jsonl", [PAIR])
    line = json.loads((tmp_path / "q.jsonl").read_text())
    del line["is_conversation"], line["answer"]
    (tmp_path / "q.jsonl").write_text(json.dumps(line) + "\n")
    assert read_queue(tmp_path / "q.jsonl") == [PAIR]


def test_id_depends_on_all_texts() -> None:
    ids = [queue_id(None, ["a", "b"], ["c"]), queue_id(None, ["a"], ["b", "c"]), queue_id("a", ["b"], ["c"])]
    assert len({*ids[:1], *ids[2:]}) == 2 and queue_id("", ["a"], []) == queue_id(None, ["a"], [])
