"""Prompts that begin with a return."""

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, PromptTurn, ReplyMarkup, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.offline.returns import ReturnPrefix, begins_with_return

PREFIX = ReturnPrefix(target=-2.0)
EOU = DialogueFormat("eou", None)


def render(messages):
    return "".join(f"<{message['role']}>{message['content']}</>" for message in messages) + "<assistant>"


CHAT = DialogueFormat("chat_template", None, render)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(-2.0, 0, "return -2"), (-0.4, 0, "return 0"), (3.14159, 2, "return 3.14"), (-0.004, 2, "return 0.00")],
)
def test_return_is_written_with_its_decimals(value, decimals, text):
    assert ReturnPrefix(0.0, decimals).text(value) == text
    assert set(text) <= set(ReturnPrefix.characters)
    assert begins_with_return(text)


def test_dialogue_begins_with_the_return_as_an_utterance():
    found = PREFIX.prompt(EOU.prompt(["a", "b", "c"]), EOU)
    assert found == EOU.prompt(["a", "b", "c"], "return -2") == "return -2<EOU>a<EOU>b<EOU>c <EOU>"
    assert found.__reduce__() == EOU.prompt(["a", "b", "c"], "return -2").__reduce__()
    alone = PREFIX.prompt(EOU.prompt([]), EOU)
    assert alone == EOU.prompt([], "return -2") == "return -2 <EOU>"
    assert alone.agent_opening == ("", "return -2", " <EOU>"), "where the agent speaks first"
    assert PREFIX.prompt(EOU.prompt(["a"], "I am b"), EOU) == "return -2\nI am b<EOU>a <EOU>"
    spaced = Prompt([PromptTurn("a", " <EOU>")], (), (), ("", "", " <EOU>"), ReplyMarkup(" "))
    assert PREFIX.prompt(spaced, EOU).reply == ReplyMarkup(" ")


def test_return_is_the_system_message_or_on_a_line_of_its_own_and_found_again():
    found = PREFIX.prompt(CHAT.prompt(["a"]), CHAT)
    assert found == "<system>return -2</><user>a</><assistant>"
    assert found.later_opening == ("<system>", "return -2", "</><user>")
    with_persona = PREFIX.prompt(CHAT.prompt(["a"], "I am b"), CHAT)
    assert with_persona == "<system>return -2\nI am b</><user>a</><assistant>"
    assert PREFIX.prompt("some text", None) == "return -2\nsome text"
    turns = Prompt([PromptTurn("", "a|"), PromptTurn("", "b|")], agent_opening=None)
    assert PREFIX.prompt(turns, None) == "return -2\na|b|" and len(PREFIX.prompt(turns, None).turns) == 2
    with pytest.raises(DataError, match="needs a prompt whose messages are known"):
        PREFIX.prompt("<user>a</><assistant>", CHAT)
    with pytest.raises(DataError, match="begins with several texts"):
        PREFIX.prompt(Prompt([PromptTurn("a", "|")], ("", "b", "|", "c", "|")), EOU)
    assert all(map(begins_with_return, ("return -3<EOU>hi <EOU>", "return 2.5\nhi", "return 0")))
    assert not any(map(begins_with_return, ("return it, please", "return 5th", "the return -3", "")))
    assert not begins_with_return(EOU.prompt(["return 5"]))
    assert begins_with_return(PREFIX.prompt(EOU.prompt(["hi"], "a persona"), EOU))


def test_logged_conversation_begins_with_its_own_return():
    turns = (
        Turn("a", PARTNER),
        Turn("x", AGENT, reward=9.0),
        Turn("b", PARTNER),
        Turn("c", AGENT, reward=-1.0, token_rewards=(-0.5, 2.0)),
        Turn("d", PARTNER),
        Turn("e", AGENT, reward=3.0),
    )
    dialogue = Dialogue("id", turns, n_given=3, prompt=EOU.prompt(["a", "x", "b"]))
    assert PREFIX.dialogue(dialogue, dialogue.prompt or "", EOU).prompt == "return 4<EOU>a<EOU>x<EOU>b <EOU>"
