"""Feedback is written and read back, and a wrong line is told by its number."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback, check_feedback_file, read_feedback

A, B = JudgedReply("runs/a", "yes"), JudgedReply("runs/b", "no")
ALL = [
    Feedback("rating", ["hi"], [A], rating=-1, persona="a cat"),
    Feedback("preference", ["hi"], [A, B], chosen=0),
    Feedback("correction", ["hi", "yes", "why?"], [B], correction="because"),
    Feedback("conversation_rating", ["hi", "yes", "why?"], [B], rating=1, answer="oh"),
    Feedback("conversation_rating", [], [A], rating=-1),  # the model spoke first and last
]


def test_feedback_is_read_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    for feedback in ALL:
        append_feedback(path, feedback)
    assert read_feedback(path) == ALL
    with open(path, "a") as file:
        file.write('{"version": 1, "kind": "rat')
    assert read_feedback(path) == ALL


def test_record_has_what_its_kind_has_and_no_more() -> None:
    record = ALL[1].record()
    assert record["version"] == 1 and record["chosen"] == 0
    assert record["replies"] == [{"model": "runs/a", "text": "yes"}, {"model": "runs/b", "text": "no"}]
    assert not {"rating", "correction", "answer"} & record.keys()
    assert datetime.fromisoformat(record["time"]).tzinfo is not None
    assert "withdrawn" not in record
    assert len({feedback.id for feedback in ALL}) == len(ALL)
    assert ALL[3].record()["answer"] == "oh" and ALL[3].utterances == ["hi", "yes", "why?", "no", "oh"]
    assert ALL[4].utterances == ["yes"]


@pytest.mark.parametrize("feedback", ALL)
def test_judgement_that_is_taken_back_is_another_line(tmp_path: Path, feedback: Feedback) -> None:
    withdrawal = feedback.withdrawal()
    append_feedback(tmp_path / "feedback.jsonl", withdrawal)
    assert read_feedback(tmp_path / "feedback.jsonl") == [withdrawal] and withdrawal.id != feedback.id
    assert withdrawal.record() == {**feedback.record(), "withdrawn": True, "id": withdrawal.id, "time": withdrawal.time}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version must be 1, not 2"),
        ({"kind": "ratin"}, "kind must be one of rating, preference, correction, conversation_rating, not 'ratin'"),
        ({"answer": "oh"}, "answer must be a text after the last reply of a conversation_rating, not 'oh'"),
        ({"kind": "conversation_rating", "answer": 3}, "answer must be a text after the last reply"),
        ({"kind": "conversation_rating", "replies": []}, "a conversation rating needs 1 in replies, not 0"),
        ({"rating": 5}, "rating must be -1 or 1, not 5"),
        ({"rating": True}, "rating must be -1 or 1, not True"),
        ({"rating": [1]}, "rating must be -1 or 1, not [1]"),
        ({"chosen": 1}, "a rating has no chosen"),
        ({"turns": []}, "turns must be a list of at least one text, not []"),
        ({"turns": "hi"}, "turns must be a list of at least one text, not 'hi'"),
        ({"replies": [{"model": "m"}]}, "each of the replies must have model and text, not {'model': 'm'}"),
        ({"replies": [{"model": "m", "text": 3}]}, "each of the replies must have model and text"),
        ({"replies": 3}, "replies must be a list, not 3"),
        ({"replies": []}, "a rating needs 1 in replies, not 0"),
        ({"ratng": 1}, "unknown key 'ratng'; did you mean 'rating'?"),
        ({"time": 3}, "time must be a text, not 3"),
        ({"withdrawn": 1}, "withdrawn must be true or false, not 1"),
        ({"kind": "correction", "rating": None}, "correction must be a text, not None"),
    ],
)
def test_wrong_line_is_told_by_its_number(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "feedback.jsonl"
    append_feedback(path, ALL[1])
    with open(path, "a") as file:
        file.write(json.dumps({**ALL[0].record(), **changes}) + "\n")
    with pytest.raises(DataError, match=re.escape(f"feedback.jsonl:2: {message}")):
        read_feedback(path)


@pytest.mark.parametrize(("line", "message"), [("{", "not valid JSON"), ("[1]", "must be a JSON object, not [1]")])
def test_line_that_is_no_record_is_told(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "feedback.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=re.escape(f"feedback.jsonl:1: {message}")):
        read_feedback(path)


def test_missing_key_and_missing_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_feedback(path)
    path.write_text(json.dumps({"version": 1, "kind": "rating", "turns": ["a"]}) + "\n")
    with pytest.raises(DataError, match="replies is missing"):
        read_feedback(path)


@pytest.mark.parametrize("content", ["my notes", '{"prompt": "hi"}\n{"prom', "[1]\n"])
def test_file_of_anything_else_gets_no_feedback(tmp_path: Path, content: str) -> None:
    path = tmp_path / "feedback.jsonl"
    check_feedback_file(path)
    path.write_text(content)
    with pytest.raises(DataError, match="is not a file of feedback, and is left as it is; choose another --feedback"):
        check_feedback_file(path)
    assert path.read_text() == content
    path.write_text(content + "\n" + json.dumps(ALL[0].record()) + "\n")
    check_feedback_file(path)
