"""The page on which people judge, over HTTP as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest
from echo_model import Echo
from page_client import Tab
from page_process import served

from rl4dialog.cli import main
from rl4dialog.core.errors import ModelError
from rl4dialog.core.feedback import JudgedReply, append_feedback, read_feedback
from rl4dialog.core.feedback_queue import QueuedReplies, write_queue
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.latest_feedback import latest
from rl4dialog.serving.judging import QueueJudging
from rl4dialog.serving.teaching import Situation, Teaching

PAIRS = [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", "<a>"), JudgedReply("n", f"b {i}")]) for i in range(4)]
WHOLE = QueuedReplies("w", ["hi", "oh", "why?"], [JudgedReply("m", "so")], is_conversation=True, answer="bye")
SINGLE = QueuedReplies("s", ["bye"], [JudgedReply("m", "see you")])


def correct(tab: Tab, text: str, index: int = 0) -> None:
    tab.edit(text, index, name="correct")


def text_of(tab: Tab) -> str:
    return f"{tab.value('help')} {tab.status}"


def test_page_shows_what_is_left_until_all_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    append_feedback(file, PAIRS[0].chosen(0))
    with served(QueueJudging([*PAIRS[:2], SINGLE], file)) as address:
        tab = Tab(address)
        assert "1 of 3 done. Choose the better reply" in text_of(tab)
        assert (tab.turns(0), tab.turns(1)) == (["hello 1", "<a>"], ["hello 1", "b 1"])
        correct(tab, "<a>", 1)
        correct(tab, "<a>", 0)
        assert "error: a correction must not be empty, and must differ" in text_of(tab)
        tab.choose("better", 1, "choose")
        assert "The preference was appended" in text_of(tab) and tab.turns(0) == ["bye", "see you"]
        assert tab.props["chat-1"]["value"] == [] and tab.options(0) == []
        tab.rate(False)
        assert "3 of 3 done. You can close this page." in text_of(tab)
        tab.choose("better", 0, "choose")
        assert "error: this page was out of date" in text_of(tab)
    given = read_feedback(file)
    assert [each.kind for each in given] == ["preference", "correction", "preference", "rating"]
    assert given[1].compared == ("<a>", "b 1")


def test_page_shows_a_whole_conversation_to_rate(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging([WHOLE], file)) as address:
        tab = Tab(address)
        assert tab.turns() == ["hi", "oh", "why?", "so", "bye"] and tab.props["chat-0"]["label"] == "Conversation"
        assert tab.props["chat-0"]["editable"] == "none" and tab.options() == []
        assert "0 of 1 done. The thumbs rate the whole conversation." in text_of(tab)
        tab.rate(True)
        assert "The conversation rating was appended" in text_of(tab) and "1 of 1 done." in text_of(tab)
        tab.act("back")
        assert "The conversation rating was withdrawn" in text_of(tab) and tab.turns()[0] == "hi"
        tab.rate(False)
    assert [(each.kind, each.rating) for each in latest(read_feedback(file))] == [("conversation_rating", -1)]


def test_bubbles_show_the_judgements_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging(PAIRS, file)) as address:
        tab = Tab(address)
        tab.rate(True, 0)
        correct(tab, "better", 1)
        for shown in (tab, Tab(address, tab.key)):
            assert (shown.ratings(0), shown.ratings(1)) == (["Like"], [None])
            assert shown.turns(1) == ["hello 0", "better"] and "your correction of the reply: b 0" in shown.below(1)
            labels = [each["label"] for i in (0, 1) for each in shown.value(f"chat-{i}")[-1]["options"]]
            assert labels == ["This reply is better", "The original reply is better"]
        tab.rate("", 0)
        correct(tab, "b 0", 1)
        assert tab.ratings(0) == [None] and tab.turns(1) == ["hello 0", "b 0"] and tab.below(1) == ""
        assert latest(read_feedback(file)) == []
        tab.rate(True, 0, number=0)
        assert "error: only the last reply can be judged" in text_of(tab)
        assert not tab.props["back"]["visible"]
        tab.choose("better", 1, "choose")
        assert tab.turns(0)[0] == "hello 1" and tab.props["back"]["visible"]
        tab.act("back")
        assert "The preference was withdrawn" in text_of(tab) and tab.turns(0)[0] == "hello 0"
        assert latest(read_feedback(file)) == []


def test_two_people_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging(PAIRS, file)) as address:
        one, other = Tab(address), Tab(address)
        assert one.key != other.key and one.turns()[0] == "hello 0" and other.turns()[0] == "hello 1"
        other.choose("better", 1, "choose")
        correct(one, "of the first person", 0)
        # A pair stays until its better reply is chosen.
        assert other.turns()[0] == "hello 2" and one.turns()[0] == "hello 0"
        again = Tab(address, one.key)  # after a reload
        again.choose("better", 0, "choose")
        assert again.turns()[0] == "hello 3"
        one.choose("better", 0, "choose")  # in the old tab
        assert "this page was out of date, so nothing was recorded" in text_of(one) and one.turns()[0] == "hello 3"
        other.choose("better", 0, "choose")
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
        one, other = Tab(address), Tab(address)
        assert one.turns() == ["a", "A"] and other.turns() == ["b", "B"]
        assert "Persona: i sing . goal : food" in text_of(one)
        one.rate(True)
        assert one.turns()[:3] == ["a", "A", "re A"] and "Persona: i sing . goal : work" in text_of(one)
        assert one.ratings() == [None, None]
        one.act("goal", goal="music")
        assert "This is a reply to the goal music." in text_of(one)
        assert model.asked[-1][0].startswith("i sing . goal : music")
        correct(one, "no <EOU>")
        assert "error: a text cannot contain &lt;EOU&gt;" in text_of(one)
        correct(other, "better")
        assert other.turns()[2] == "re better"
        model.fails_with = ModelError("the model is broken")
        one.rate(True)
        assert "error: the model is broken" in text_of(one) and one.turns() == []
        model.fails_with = None
        one.act("skip")
        assert "1 of 2 done." in text_of(one)
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
