"""Judging a queue: what is written, what is shown next, and to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import JudgedReply, read_feedback
from rl4dialog.core.feedback_queue import QueuedReplies
from rl4dialog.data.latest_feedback import latest
from rl4dialog.serving.judging import QueueJudging

PAIRS = [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", "<a>"), JudgedReply("n", f"b {i}")]) for i in range(3)]
WHOLE = QueuedReplies("w", ["hi", "oh", "why?"], [JudgedReply("m", "so")], is_conversation=True, answer="bye")
SINGLE = QueuedReplies("s", ["bye"], [JudgedReply("m", "see you")])


def test_every_judgement_is_written_before_the_next_pair(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging(PAIRS, file)
    judging.correct("me", "0", 1, " c ")
    judging.rate("me", "0", 0, -1)
    assert [(each.correction, each.rating) for each in read_feedback(file)] == [("c", None), (None, -1)]
    assert judging.progress == "0 of 3 done." and judging.current("me") is PAIRS[0]
    judging.choose("me", "0", 1)
    assert read_feedback(file)[2].chosen == 1
    assert judging.skip("me", "1") == "Nothing was recorded."
    assert judging.given == read_feedback(file) and len(judging.given) == 3
    assert judging.current("me") is PAIRS[2] and judging.progress == "2 of 3 done." and not judging.is_done
    again = QueueJudging(PAIRS, file)
    assert again.progress == "1 of 3 done." and again.current("me") is PAIRS[1]


def test_rating_and_correction_of_a_pair_stand_until_they_are_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging(PAIRS, file)
    judging.rate("me", "0", 0, 1)
    judging.correct("me", "0", 1, "c")
    assert judging.standing(PAIRS[0]) == QueueJudging(PAIRS, file).standing(PAIRS[0]) == [(1, None), (None, "c")]
    assert "The rating was withdrawn" in judging.rate("me", "0", 0, None)
    assert "The correction was withdrawn" in judging.correct("me", "0", 1, " b 0 ")
    assert judging.standing(PAIRS[0]) == [(None, None)] * 2 and judging.current("me") is PAIRS[0]
    with pytest.raises(ConfigError, match="no rating to take back"):
        judging.rate("me", "0", 0, None)
    assert latest(read_feedback(file)) == []


def test_person_can_go_back_and_judge_again(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging([*PAIRS[:2], SINGLE], file)
    with pytest.raises(ConfigError, match="nothing to go back to"):
        judging.go_back("me", "0")
    judging.choose("me", "0", 1)
    judging.skip("me", "1")
    judging.rate("me", "s", 0, -1)
    assert judging.is_done and judging.can_go_back("me") and not judging.can_go_back("other")
    with pytest.raises(ConfigError, match="out of date"):
        judging.go_back("me", "s")
    assert "The rating was withdrawn" in judging.go_back("me", "") and judging.current("me") is SINGLE
    assert judging.go_back("me", "s") == "" and judging.current("me") is PAIRS[1]
    assert "The preference was withdrawn" in judging.go_back("me", "1")
    assert judging.current("me") is PAIRS[0] and judging.progress == "0 of 3 done." and not judging.can_go_back("me")
    assert QueueJudging(PAIRS, file).current("me") is PAIRS[0]
    judging.choose("me", "0", 0)
    assert [each.chosen for each in latest(read_feedback(file))] == [0]


@pytest.mark.parametrize("action", ["rate", "correct"])
def test_single_reply_is_done_when_it_is_rated_or_corrected(tmp_path: Path, action: str) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging([SINGLE], file)
    if action == "rate":
        judging.rate("me", "s", 0, 1)
    else:
        judging.correct("me", "s", 0, "bye bye")
    assert judging.is_done and judging.current("me") is None and QueueJudging([SINGLE], file).is_done


def test_conversation_is_rated_and_cannot_be_corrected(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging([WHOLE, SINGLE], file)
    with pytest.raises(DataError, match="only single replies can be corrected"):
        judging.correct("me", "w", 0, "better")
    assert judging.rate("me", "w", 0, -1) == f"The conversation rating was appended to {file}."
    assert judging.current("me") is SINGLE and QueueJudging([WHOLE, SINGLE], file).current("me") is SINGLE
    (given,) = read_feedback(file)
    assert given.utterances == ["hi", "oh", "why?", "so", "bye"] and given.rating == -1


def test_outdated_page_and_empty_correction_record_nothing(tmp_path: Path) -> None:
    judging = QueueJudging(PAIRS, tmp_path / "feedback.jsonl")
    for id in ("1", ""):
        with pytest.raises(ConfigError, match="out of date, so nothing was recorded"):
            judging.choose("me", id, 0)
    for text in (" ", "<a>"):
        with pytest.raises(ConfigError, match="must not be empty, and must differ"):
            judging.correct("me", "0", 0, text)
    with pytest.raises(ConfigError, match="these replies have no goals"):
        judging.set_goal("me", "0", "food")
    assert not (tmp_path / "feedback.jsonl").exists() and judging.current("me") is PAIRS[0]


def test_each_person_has_another_pair_until_few_are_left(tmp_path: Path) -> None:
    judging = QueueJudging(PAIRS, tmp_path / "feedback.jsonl")
    assert [judging.current(who) for who in ("one", "other", "one")] == [PAIRS[0], PAIRS[1], PAIRS[0]]
    judging.choose("other", "1", 0)
    assert judging.current("other") is PAIRS[2]
    judging.choose("one", "0", 0)
    assert judging.current("one") is PAIRS[2]  # the other one may have left
    judging.choose("other", "2", 0)
    with pytest.raises(ConfigError, match="out of date"):
        judging.choose("one", "2", 1)
    assert judging.is_done and [each.chosen for each in judging.given] == [0, 0, 0]
