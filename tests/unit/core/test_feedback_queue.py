"""Queues of pairs to judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from feedback_files import preference

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import JudgedReply
from rl4dialog.core.feedback_queue import QueuedPair, read_queue, write_queue

PAIR = QueuedPair("1", ["hello"], [JudgedReply("m", "a"), JudgedReply("m", "b")], None, "gap", 0.5)


def test_queue_is_read_as_written(tmp_path: Path) -> None:
    write_queue(tmp_path / "q" / "queue.jsonl", [PAIR])
    assert read_queue(tmp_path / "q" / "queue.jsonl") == [PAIR]


def test_choice_in_any_order_judges_the_pair() -> None:
    assert PAIR.is_judged_by(PAIR.chosen(1)) and PAIR.is_judged_by(preference("b", "a", 0))
    assert not PAIR.is_judged_by(preference("a", "b", 0, ("hi",))) and not PAIR.is_judged_by(PAIR.corrected(0, "c"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "q.jsonl:1: version must be 1"),
        ({"replies": [{"model": "m", "text": "a"}]}, "q.jsonl:1: a preference needs 2 in replies, not 1"),
        ({"other": 1}, "q.jsonl:1: a pair needs exactly the keys"),
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
    with pytest.raises(DataError, match="has no pairs; rl4dialog select writes them"):
        read_queue(tmp_path / "q.jsonl")
