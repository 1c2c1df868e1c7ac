from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rated import chitchat_conversation

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.data.chitchat import read_chitchat


def write(folder: Path, content: Any) -> Path:
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def test_conversations_are_read_with_joined_messages_and_without_one_liners(tmp_path: Path) -> None:
    conversations = {
        "one": chitchat_conversation("hi", ["hello", "you"], prompt="Greet", ratings={"witty": 3}),
        "two": chitchat_conversation("nobody answers", ratings={"witty": 1}),
        "three": chitchat_conversation("a", "b"),
    }
    one, three = read_chitchat(write(tmp_path, conversations))
    assert [(turn.text, turn.speaker) for turn in one.dialogue.turns] == [("hi", PARTNER), ("hello you", AGENT)]
    assert (one.ratings, one.dialogue.topic, one.conversation) == ({"witty": 3.0}, "Greet", "one")
    assert three.ratings == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "must contain an object with one conversation per id"),
        ({"x": {"start": ""}}, r"conversation x is malformed \(KeyError: 'messages'\)"),
        ({"x": chitchat_conversation("a", "b", ratings={"witty": "5"})}, "the rating 'witty' must be a number"),
    ],
)
def test_malformed_file_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_chitchat(write(tmp_path, content))
