"""What was said, and the prompts that are made of it."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.serving.conversation import Conversation

EOU = DialogueFormat("eou", 3)
CHAT = DialogueFormat("chat_template", None, lambda messages: "|".join(f"{m['role']}:{m['content']}" for m in messages))


def talked() -> Conversation:
    conversation = Conversation()
    conversation.add("a", "b")
    conversation.add("c", "d")
    return conversation


def test_prompt_is_written_in_the_dialogue_format() -> None:
    conversation = talked()
    assert conversation.prompt("e", EOU) == "c<EOU>d<EOU>e <EOU>"
    conversation.persona = "P"
    assert conversation.prompt("e", EOU) == "P<EOU>c<EOU>d<EOU>e <EOU>"
    assert conversation.prompt("e", CHAT) == "system:P|user:a|assistant:b|user:c|assistant:d|user:e"
    assert conversation.turns == ["a", "b", "c", "d"]


def test_rewards_read_the_history_that_the_prompt_shows_and_the_persona() -> None:
    conversation = talked()
    assert conversation.meta_info("e", EOU) == {"history": ["c", "d", "e"]}
    conversation.persona = "P"
    assert conversation.meta_info("e", EOU)["persona"] == ["P"]


def test_undo_takes_back_exchanges_until_there_is_none() -> None:
    conversation = talked()
    assert conversation.undo() == ("c", "d")
    assert conversation.turns == ["a", "b"]
    assert conversation.undo() == ("a", "b")
    assert conversation.undo() is None


def test_reset_keeps_the_persona() -> None:
    conversation = talked()
    conversation.persona = "P"
    conversation.reset()
    assert (conversation.turns, conversation.persona) == ([], "P")


def test_messages_have_roles_in_turn() -> None:
    conversation = Conversation("P", ["a", "b"])
    assert [(m["role"], m["content"]) for m in conversation.messages()] == [
        ("system", "P"),
        ("user", "a"),
        ("assistant", "b"),
    ]


@pytest.mark.parametrize(("text", "message"), [(" ", "cannot be empty"), ("a <EOU> b", "cannot contain <EOU>")])
def test_text_that_cannot_be_said_is_an_error(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Conversation().prompt(text, EOU)
