"""Votes and corrections on the page of a queue, whose program is killed, and ended by Ctrl-C."""

import signal

import pytest
from page_client import Tab
from page_process import start_page

from rl4dialog.core.feedback import JudgedReply, QueuedReplies, read_feedback, write_queue

N = 6
QUEUE = [QueuedReplies(f"{i}", [f"hello {i}"], [JudgedReply("m", f"a {i}"), JudgedReply("m", "b")]) for i in range(N)]


@pytest.mark.long
def test_votes_and_corrections_outlive_a_kill(tmp_path):
    file = tmp_path / "feedback.jsonl"
    write_queue(tmp_path / "queue.jsonl", QUEUE)
    flags = ("--queue", str(tmp_path / "queue.jsonl"), "--feedback", str(file))
    expected = []

    def vote(person):
        number = int(person.turns()[0].removeprefix("hello "))
        if number % 2:
            person.edit(f"better {number}", 0, name="correct")
            expected.append((f"hello {number}", "correction", f"better {number}"))
        person.choose("better", number % 2, "choose")
        expected.append((f"hello {number}", "preference", number % 2))
        # Before anything else happens:
        given = [(each.turns[-1], each.kind, each.correction or each.chosen) for each in read_feedback(file)]
        assert given == expected

    process, address = start_page(tmp_path, *flags)
    person = Tab(address)
    for _ in range(3):
        vote(person)
    process.kill()
    process, address = start_page(tmp_path, *flags)
    person = Tab(address, person.key)
    assert f"3 of {N} done." in person.value("help")
    for _ in range(3, N):
        vote(person)
    assert f"{N} of {N} done. You can close this page." in person.value("help")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0 and "Traceback" not in process.errors
