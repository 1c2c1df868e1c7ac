"""Texts about conversations: openings, and what reward models read."""

from feedback_files import rating

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, PromptTurn, Turn
from rl4dialog.data.dialogue_text import dialogue_text, opening_in, reply_text, with_goal, without_goal
from rl4dialog.data.ratings import judged_dialogue


def test_goal_is_added_to_a_persona_and_removed_again():
    assert with_goal(["i am old ."], "pet") == "i am old . goal : pet"
    assert without_goal("i am old . goal : pet") == "i am old ." and without_goal("i am old .") == "i am old ."
    assert without_goal(with_goal([], "pet")) == ""
    assert opening_in({"persona": ["i am old .", "i run ."], "goal": "pet"}) == "i am old . i run . goal : pet"
    assert opening_in({"goal": "pet"}) == "goal : pet" and opening_in({"persona": "a", "goal": None}) == "a"
    assert opening_in({}) is opening_in({"goal": {"inform": {"food": "thai"}}}) is None


DIALOGUE = Dialogue(1, (Turn("hi", PARTNER), Turn("yes?", AGENT), Turn("a\nUser: b", PARTNER)))


def test_reply_is_written_and_scored_like_a_rated_dialogue_with_the_same_utterances():
    assert dialogue_text(DIALOGUE) == dialogue_text(DIALOGUE, 9) == "User: hi\nAssistant: yes?\nUser: a User: b"
    assert dialogue_text(DIALOGUE, 1) == "Assistant: yes?\nUser: a User: b", "one utterance before the last"
    with_persona = Dialogue(1, DIALOGUE.turns[:1], meta_data={"persona": "be\nkind"})
    assert dialogue_text(with_persona, 1) == "Persona: be kind\nUser: hi"
    expected = "User: hi\nAssistant: yes?"
    assert reply_text("hi <EOU>", "yes?", {"history": ["hi"]}) == expected
    assert reply_text(Prompt([PromptTurn("hi", " <EOU>")]), "yes?", None) == expected
    assert reply_text("hi", "yes?", {}) == expected
    assert reply_text("", "yes?", {"history": ["a", "b", "hi"]}, 1) == expected
    meta_data = {"history": ["hi"], "persona": ["i sing .", "i run ."], "goal": "pet"}
    given = rating("yes?", 1, ("hi",), persona="i sing . i run . goal : pet")
    expected = "Persona: i sing . i run . goal : pet\nUser: hi\nAssistant: yes?"
    assert reply_text("", "yes?", meta_data) == dialogue_text(judged_dialogue(given, "yes?")) == expected
