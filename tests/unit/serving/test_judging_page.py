"""The page on which people judge, over HTTP as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest
from echo_model import Echo
from page_process import Browser, served

from rl4dialog.cli import main
from rl4dialog.core.errors import ModelError
from rl4dialog.core.feedback import JudgedReply, append_feedback, read_feedback
from rl4dialog.core.feedback_queue import QueuedReplies, write_queue
from rl4dialog.core.types import PartnerReply
from rl4dialog.serving.judging import QueueJudging
from rl4dialog.serving.teaching import Situation, Teaching

PAIRS = [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", "<a>"), JudgedReply("n", f"b {i}")]) for i in range(4)]
WHOLE = QueuedReplies("w", ["hi", "oh", "why?"], [JudgedReply("m", "so")], is_conversation=True, answer="bye")
SINGLE = QueuedReplies("s", ["bye"], [JudgedReply("m", "see you")])


def test_page_shows_what_is_left_until_all_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    append_feedback(file, PAIRS[0].chosen(0))
    with served(QueueJudging([*PAIRS[:2], SINGLE], file)) as address:
        person = Browser(address)
        assert "1 of 3 done. Choose the better reply" in person.text
        assert "hello 1" in person.text and "&lt;a&gt;" in person.text and "b 1" in person.text
        person.click("correct_1", "<a>")
        person.click("correct_0", "<a>")
        assert "error: a correction must not be empty, and must differ" in person.text
        person.click("choose_1")
        assert "The preference was appended" in person.text and "see you" in person.text and "b 1" not in person.text
        person.click("rate_down_0")
        assert "3 of 3 done. You can close this page." in person.text
        person.click("choose_0")
        assert "error: this page was out of date" in person.text
    given = read_feedback(file)
    assert [each.kind for each in given] == ["preference", "correction", "preference", "rating"]
    assert given[1].compared == ("<a>", "b 1")


def test_page_shows_a_whole_conversation_to_rate(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging([WHOLE], file)) as address:
        person = Browser(address)
        shown = [person.text.index(f">{text}<") for text in ("Conversation", "hi", "oh", "why?", "so", "bye")]
        assert shown == sorted(shown)
        person.click("rate_up_0")
        assert "The conversation rating was appended" in person.text and "1 of 1 done." in person.text
    assert [(each.kind, each.rating) for each in read_feedback(file)] == [("conversation_rating", 1)]


def test_two_people_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging(PAIRS, file)) as address:
        one, other = Browser(address), Browser(address)
        assert one.key != other.key and "hello 0" in one.text and "hello 1" in other.text
        other.click("choose_1")
        one.click("correct_0", "of the first person")
        assert "hello 2" in other.text and "hello 0" in one.text  # a pair stays until its better reply is chosen
        again = Browser(address, one.key)  # after a reload
        again.click("choose_0")
        assert "hello 3" in again.text
        one.click("choose_0")  # in the old tab
        assert "this page was out of date, so nothing was recorded" in one.text and "hello 3" in one.text
        other.click("choose_0")
    assert [(each.turns[0], each.correction or each.chosen) for each in read_feedback(file)] == [
        ("hello 1", 1),
        ("hello 0", "of the first person"),
        ("hello 0", 0),
        ("hello 2", 0),
    ]


def test_model_is_taught_on_the_page(tmp_path: Path) -> None:
    file, model = tmp_path / "feedback.jsonl", Echo()
    situations = [
        Situation([text], "i sing .", "food", lambda: lambda said: PartnerReply(f"re {said}")) for text in "ab"
    ]
    with served(Teaching(model, situations, file, goals=["food", "work"])) as address:
        one, other = Browser(address), Browser(address)
        assert ">A<" in one.text and ">B<" in other.text and "Persona: i sing . goal : food" in one.text
        one.click("rate_up_0")
        assert ">re A<" in one.text and "Persona: i sing . goal : work" in one.text
        one.click("goal", "music")
        assert "This is a reply to the goal music." in one.text and model.asked[-1][0].startswith(
            "i sing . goal : music"
        )
        one.click("correct_0", "no <EOU>")
        assert "error: a text cannot contain &lt;EOU&gt;" in one.text
        other.click("correct_0", "better")
        assert ">re better<" in other.text
        model.fails_with = ModelError("the model is broken")
        one.click("rate_up_0")
        assert "error: the model is broken" in one.text and ">re A<" not in one.text
        model.fails_with = None
        one.click("choose_none")
        assert "1 of 2 done." in one.text
    given = read_feedback(file)
    assert [(each.kind, each.persona) for each in given] == [
        ("rating", "i sing . goal : food"),
        ("correction", "i sing . goal : food"),
        ("rating", "i sing . goal : music"),
    ]
    assert given[2].turns == ["a", "A", "re A"]


def test_options_that_do_not_fit_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    write_queue(tmp_path / "q.jsonl", PAIRS)
    queue = ["--queue", str(tmp_path / "q.jsonl")]
    for flags, message in (
        ([*queue, "--run", "x"], "--queue shows replies that are already written; remove --run"),
        ([*queue, "--seed", "0"], "already written; remove --seed"),
        ([*queue, "--teach"], "--teach shows one reply of one model at a time; remove --queue"),
        (["--run", "x", "--teach", "--show_reward"], "at a time; remove --show_reward"),
        (["--run", "x", "--n", "3"], "--split and --n select the situations of --teach, which is missing"),
        (["--run", "x", "--teach", "--n", "0"], "--n must be at least 1, not 0"),
    ):
        assert main(["ui", *flags]) == 2
        assert message in capsys.readouterr().err
