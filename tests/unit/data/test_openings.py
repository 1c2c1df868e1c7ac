"""The text at the beginning of a prompt."""

from __future__ import annotations

from rl4dialog.data.openings import opening_in, with_goal, without_goal


def test_goal_is_added_to_a_persona_and_removed_again() -> None:
    assert with_goal(["i am old ."], "pet") == "i am old . goal : pet"
    assert without_goal("i am old . goal : pet") == "i am old ." and without_goal("i am old .") == "i am old ."
    assert without_goal(with_goal([], "pet")) == ""


def test_opening_of_a_sample_is_its_persona_and_goal() -> None:
    assert opening_in({"persona": ["i am old .", "i run ."], "goal": "pet"}) == "i am old . i run . goal : pet"
    assert opening_in({"goal": "pet"}) == "goal : pet" and opening_in({"persona": "a", "goal": None}) == "a"
    assert opening_in({}) is None


def test_goal_of_the_partner_is_not_in_the_opening() -> None:
    assert opening_in({"goal": {"inform": {"food": "thai"}}}) is None
