"""Chats are found by their keys, and a key is nothing that anybody could make up."""

from __future__ import annotations

import pytest

from rl4dialog.serving.chat_state import ChatState
from rl4dialog.serving.sessions import ChatSessions


def test_chat_is_found_by_its_key() -> None:
    sessions = ChatSessions()
    key, state = sessions.open()
    assert state == ChatState()
    kept = sessions.keep(key, ChatState(note="P"))
    assert kept.revision == 1 and sessions.open(key) == (key, kept)
    assert sessions.keep(key, ChatState()).revision == 2
    assert sessions.open()[0] != key


@pytest.mark.parametrize("key", [None, "", "abc", "../../etc/passwd", 3, {"a": 1}, "0" * 31 + "g"])
def test_what_is_no_key_gets_a_new_one(key: object) -> None:
    known, state = ChatSessions().open(key)
    assert len(known) == 32 and known != key and state == ChatState()


def test_key_of_a_server_that_was_started_again_stays() -> None:
    key, _ = ChatSessions().open()
    assert ChatSessions().open(key) == (key, ChatState())


def test_chat_that_was_not_used_for_longest_is_forgotten() -> None:
    sessions = ChatSessions(capacity=2)
    keys = [sessions.open()[0] for _ in range(2)]
    for key in keys:
        sessions.keep(key, ChatState(note="P"))
    sessions.open(keys[0])
    sessions.open()
    assert sessions.open(keys[0])[1].note == "P" and sessions.open(keys[1])[1].note == ""
