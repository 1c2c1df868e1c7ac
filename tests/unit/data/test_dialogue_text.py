"""The texts that reward models read."""

from __future__ import annotations

from feedback_files import rating

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, PromptTurn, Turn
from rl4dialog.data.dialogue_text import dialogue_text, reply_text
from rl4dialog.data.latest_feedback import judged_dialogue

DIALOGUE = Dialogue(1, (Turn("hi", PARTNER), Turn("yes?", AGENT), Turn("a\nUser: b", PARTNER)))


def test_each_utterance_is_a_line_with_its_speaker() -> None:
    assert dialogue_text(DIALOGUE) == "User: hi\nAssistant: yes?\nUser: a User: b"


def test_context_size_counts_the_utterances_before_the_last() -> None:
    assert dialogue_text(DIALOGUE, 1) == "Assistant: yes?\nUser: a User: b"
    assert dialogue_text(DIALOGUE, 9) == dialogue_text(DIALOGUE)


def test_persona_is_the_first_line() -> None:
    with_persona = Dialogue(1, DIALOGUE.turns[:1], meta_data={"persona": "be\nkind"})
    assert dialogue_text(with_persona, 1) == "Persona: be kind\nUser: hi"


def test_reply_is_written_like_a_rated_dialogue_with_the_same_utterances() -> None:
    expected = "User: hi\nAssistant: yes?"
    assert reply_text("hi <EOU>", "yes?", {"history": ["hi"]}) == expected
    assert reply_text(Prompt([PromptTurn("hi", " <EOU>")]), "yes?", None) == expected
    assert reply_text("hi", "yes?", {}) == expected
    assert reply_text("", "yes?", {"history": ["a", "b", "hi"]}, 1) == expected


def test_reply_is_scored_as_the_same_reply_in_feedback() -> None:
    meta_data = {"history": ["hi"], "persona": ["i sing .", "i run ."], "goal": "pet"}
    given = rating("yes?", 1, ("hi",), persona="i sing . i run . goal : pet")
    expected = "Persona: i sing . i run . goal : pet\nUser: hi\nAssistant: yes?"
    assert reply_text("", "yes?", meta_data) == dialogue_text(judged_dialogue(given, "yes?")) == expected
