"""A session of votes and corrections on the page of a queue, whose program is killed, and ended by Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from page_client import Tab
from page_process import start_page

from rl4dialog.core.feedback import Feedback, JudgedReply, QueuedReplies, read_feedback, write_queue

N_VOTES = 20
QUEUE = [
    *(
        QueuedReplies(f"pair {i}", [f"hello {i}"], [JudgedReply("m", f"a {i}"), JudgedReply("m", f"b {i}")])
        for i in range(N_VOTES)
    ),
    QueuedReplies("single", ["bye"], [JudgedReply("m", "see you")]),
    QueuedReplies("whole", ["good day"], [JudgedReply("m", "hi")], is_conversation=True, answer="so long"),
]


def test_votes_and_corrections_outlive_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    file = tmp_path / "feedback.jsonl"
    write_queue(tmp_path / "queue.jsonl", QUEUE)
    flags = ("--queue", str(tmp_path / "queue.jsonl"), "--feedback", str(file))
    expected: list[tuple[str, str, int | str]] = []

    def number_of(person: Tab) -> int:
        return int(person.turns()[0].removeprefix("hello "))

    def vote(person: Tab) -> None:
        number = number_of(person)
        if number % 4 == 0:
            person.edit(f"better {number}", number % 2, name="correct")
            expected.append((f"hello {number}", "correction", f"better {number}"))
        if number % 5 == 0:
            person.rate(False, 1)
            expected.append((f"hello {number}", "rating", -1))
        person.choose("better", number % 2, "choose")
        expected.append((f"hello {number}", "preference", number % 2))
        assert [judgement(each) for each in read_feedback(file)] == expected  # before anything else happens

    process, address = start_page(tmp_path, *flags)
    person = Tab(address)
    for _ in range(11):
        vote(person)
    process.kill()
    assert number_of(person) == 11

    process, address = start_page(tmp_path, *flags)
    person = Tab(address, person.key)
    assert "11 of 22 done." in person.value("help") and number_of(person) == 11
    while "see you" not in person.turns():
        vote(person)
    person.rate(True)
    assert person.turns() == ["good day", "hi", "so long"]
    person.rate(False, number=1)
    assert "22 of 22 done. You can close this page." in person.value("help")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0 and "Traceback" not in process.errors
    kinds = [each.kind for each in read_feedback(file)]
    assert [kinds.count(kind) for kind in ("preference", "correction", "rating")] == [N_VOTES, 5, 5]
    last = [("bye", "rating", 1), ("good day", "conversation_rating", -1)]
    assert [judgement(each) for each in read_feedback(file)] == [*expected, *last]


def judgement(given: Feedback) -> tuple[str, str, int | str]:
    """Last turn, kind and verdict."""
    verdicts = (given.chosen, given.rating, given.correction)
    (verdict,) = (each for each in verdicts if each is not None)
    return given.turns[-1], given.kind, verdict
