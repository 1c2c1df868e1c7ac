"""Values of the agent's acts: bookings that are refused."""

from __future__ import annotations

from worlds import DATABASE, ONTOLOGY

from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer


def test_booking_is_refused_once_whatever_is_said_of_it() -> None:
    wanted = DomainGoal({"food": "thai"}, {}, (), {"day": "friday", "people": "3"}, {"day": "monday"})
    belief = BeliefState(ONTOLOGY)
    said = {"food": "thai", "day": "monday", "people": "3"}
    belief.hear(DialogueAct("inform", "restaurant", slot, value) for slot, value in said.items())
    acts = [DialogueAct("book", "restaurant", slot, "1") for slot in ("name", "day", "ref")]
    found = Lexicalizer(ONTOLOGY, DATABASE).say(acts, belief, Goal("1", {"restaurant": wanted}))
    assert found.acts == [DialogueAct("nobook", "restaurant")]
    assert not found.bookings and not found.n_unsayable
