"""Feedback is written and read back, and a wrong line is told by its number."""

import json
import re
from dataclasses import replace
from datetime import datetime

import pytest
from feedback_files import preference

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import (
    Feedback,
    JudgedReply,
    QueuedReplies,
    append_feedback,
    check_feedback_file,
    queue_id,
    read_feedback,
    read_pairs,
    read_queue,
    write_queue,
)

A, B = JudgedReply("runs/a", "yes"), JudgedReply("runs/b", "no")
ALL = [
    Feedback("rating", ["hi"], [A], rating=-1, persona="a cat"),
    Feedback("preference", ["hi"], [A, B], chosen=0),
    Feedback("correction", ["hi", "yes", "why?"], [B], correction="because"),
    Feedback("conversation_rating", ["hi", "yes", "why?"], [B], rating=1, answer="oh"),
    Feedback("conversation_rating", [], [A], rating=-1),  # the model spoke first and last
]


def test_feedback_is_read_as_it_was_given(tmp_path, caplog):
    path = tmp_path / "feedback.jsonl"
    for feedback in ALL:
        append_feedback(path, feedback)
    assert read_feedback(path) == ALL and not caplog.messages
    with open(path, "a") as file:
        file.write('{"version": 1, "kind": "rat')
    assert read_feedback(path) == ALL
    assert f"{path}:6 is cut short, so it is left out; complete or remove the line" in caplog.text


def test_record_has_what_its_kind_has_and_no_more():
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
def test_judgement_that_is_taken_back_is_another_line(tmp_path, feedback):
    withdrawal = feedback.withdrawal()
    append_feedback(tmp_path / "feedback.jsonl", withdrawal)
    assert read_feedback(tmp_path / "feedback.jsonl") == [withdrawal] and withdrawal.id != feedback.id
    assert withdrawal.record() == {**feedback.record(), "withdrawn": True, "id": withdrawal.id, "time": withdrawal.time}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version must be 1, not 2"),
        ({"kind": "ratin"}, "kind must be one of rating, preference, correction, conversation_rating, not 'ratin'"),
        ({"answer": "oh"}, "a rating has no answer, which is what the partner said after"),
        ({"kind": "conversation_rating", "replies": []}, "a conversation rating needs 1 in replies, not 0"),
        ({"rating": 5}, "rating must be -1 or 1, not 5"),
        ({"rating": True}, "rating: input should be a valid integer, got True"),
        ({"chosen": 1}, "a rating has no chosen"),
        ({"turns": []}, "turns must be a list of at least one text, not []"),
        ({"turns": "hi"}, "turns: 'str' instances are not allowed"),
        ({"replies": [{"model": "m"}]}, "replies[0]: the key 'text' is missing, got {'model': 'm'}"),
        ({"replies": []}, "a rating needs 1 in replies, not 0"),
        ({"ratng": 1}, "ratng: unknown key; did you mean 'rating'?"),
        ({"withdrawn": 1}, "withdrawn: input should be a valid boolean, got 1"),
        ({"kind": "correction", "rating": None}, "correction must be a text, not None"),
        ({"id": ...}, "the key 'id' is missing"),
        ({"time": ...}, "the key 'time' is missing"),
    ],
)
def test_wrong_line_is_told_by_its_number(tmp_path, changes, message):
    path = tmp_path / "feedback.jsonl"
    append_feedback(path, ALL[1])
    record = {key: value for key, value in {**ALL[0].record(), **changes}.items() if value is not ...}
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=re.escape(f"feedback.jsonl:2: {message}")):
        read_feedback(path)


def test_missing_key_and_missing_file_are_told(tmp_path):
    path = tmp_path / "feedback.jsonl"
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_feedback(path)
    path.write_text(json.dumps({"version": 1, "kind": "rating", "turns": ["a"]}) + "\n")
    with pytest.raises(DataError, match="the key 'replies' is missing"):
        read_feedback(path)


@pytest.mark.parametrize("content", ["my notes", '{"prompt": "hi"}\n{"prom', "[1]\n"])
def test_file_of_anything_else_gets_no_feedback(tmp_path, content):
    path = tmp_path / "feedback.jsonl"
    check_feedback_file(path)
    path.write_text(content)
    with pytest.raises(DataError, match="is not a file of feedback, and is left as it is; choose another --feedback"):
        check_feedback_file(path)
    assert path.read_text() == content
    path.write_text(content + "\n" + json.dumps(ALL[0].record()) + "\n")
    check_feedback_file(path)


SINGLE = QueuedReplies("2", ["hello"], [JudgedReply("m", "a")], "i sing .")
WHOLE = QueuedReplies("3", ["hello"], [JudgedReply("m", "a")], is_conversation=True, answer="oh")
PAIR = QueuedReplies("1", ["hello"], [JudgedReply("m", "a"), JudgedReply("m", "b")], None, "gap", 0.5)


def test_queue_is_read_as_written_and_is_not_empty(tmp_path):
    write_queue(tmp_path / "q" / "queue.jsonl", [PAIR, SINGLE, WHOLE])
    assert read_queue(tmp_path / "q" / "queue.jsonl") == [PAIR, SINGLE, WHOLE]
    write_queue(tmp_path / "q.jsonl", [])
    with pytest.raises(DataError, match="has no replies to judge; rl4dialog select writes them"):
        read_queue(tmp_path / "q.jsonl")
    write_queue(tmp_path / "q.jsonl", [PAIR])
    assert read_pairs(tmp_path / "q.jsonl") == [PAIR]
    write_queue(tmp_path / "q.jsonl", [PAIR, SINGLE])
    with pytest.raises(DataError, match="has more than pairs, but pairs are needed"):
        read_pairs(tmp_path / "q.jsonl")
    write_queue(tmp_path / "q.jsonl", [PAIR])
    line = json.loads((tmp_path / "q.jsonl").read_text())
    del line["is_conversation"], line["answer"]
    (tmp_path / "q.jsonl").write_text(json.dumps(line) + "\n")
    assert read_queue(tmp_path / "q.jsonl") == [PAIR]


def test_pair_is_judged_by_a_choice_in_any_order_and_a_single_reply_by_a_rating_or_correction():
    assert PAIR.is_judged_by(PAIR.chosen(1)) and PAIR.is_judged_by(preference("b", "a", 0))
    assert not PAIR.is_judged_by(preference("a", "b", 0, ("hi",))) and not PAIR.is_judged_by(PAIR.corrected(0, "c"))
    assert SINGLE.is_judged_by(SINGLE.rated(0, -1)) and SINGLE.is_judged_by(SINGLE.corrected(0, "b"))
    assert SINGLE.rated(0, -1).rating == -1 and SINGLE.rated(0, -1).persona == "i sing ."
    assert not SINGLE.is_judged_by(PAIR.rated(0, 1))  # another persona
    assert not PAIR.is_judged_by(PAIR.rated(0, 1)) and PAIR.is_pair and not SINGLE.is_pair


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "q.jsonl:1: version must be 1"),
        ({"replies": []}, "q.jsonl:1: a preference needs 2 in replies, not 0"),
        ({"replies": [{"model": "m", "text": "a"}], "turns": []}, "q.jsonl:1: turns must be a list of at least one"),
        ({"is_conversation": True}, "q.jsonl:1: is_conversation is only true with one reply"),
        ({"is_conversation": True, "replies": [{"model": "m", "text": "a"}], "answer": 1}, "q.jsonl:1: answer: input"),
    ],
)
def test_invalid_lines_are_errors(tmp_path, change, message):
    path = tmp_path / "q.jsonl"
    write_queue(path, [PAIR])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        read_queue(path)


def test_conversation_is_judged_by_a_rating_of_the_same_conversation_and_has_no_correction():
    reply = QueuedReplies("4", ["hello"], [JudgedReply("m", "a")])
    shorter = replace(WHOLE, answer=None)
    assert WHOLE.rated(0, 1).kind == "conversation_rating" and WHOLE.is_judged_by(WHOLE.rated(0, 1))
    for other in (reply, shorter):
        assert not WHOLE.is_judged_by(other.rated(0, 1)) and not other.is_judged_by(WHOLE.rated(0, 1))
    with pytest.raises(DataError, match="a whole conversation is rated up or down; only single replies can be corr"):
        WHOLE.corrected(0, "b")


def test_id_depends_on_all_texts():
    ids = [queue_id(None, ["a", "b"], ["c"]), queue_id(None, ["a"], ["b", "c"]), queue_id("a", ["b"], ["c"])]
    assert len({*ids[:1], *ids[2:]}) == 2 and queue_id("", ["a"], []) == queue_id(None, ["a"], [])
