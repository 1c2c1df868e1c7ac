"""What a language model reads in a turn: the user's words as the agent understood them, its belief, and what it found.

Source: Budzianowski et al. 2018, "MultiWOZ" (arXiv 1810.00278), whose context-to-text task gives belief and database.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE, DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.world import World

NOTHING_HEARD = "..."
SEPARATOR = " | "
_MANY = 4


def user_text(heard: Sequence[DialogueAct], belief: BeliefState, world: World) -> str:
    """Words of a user, and the state of the dialogue after them.

    Args:
        heard: What the agent understood.
        belief: Its belief, with what it heard.
        world: The world.

    Returns:
        Text such as ``What is the phone number of the restaurant? | restaurant: food thai, area any; wants phone;
        offered; 2 found``.
    """
    return f"{world.templates.render(heard, 'user') or NOTHING_HEARD}{SEPARATOR}{_state(belief, world)}"


def _state(belief: BeliefState, world: World) -> str:
    """The belief about the domain that is being talked about, and the number of entities that satisfy it."""
    name = belief.active
    if not name:
        return "nothing known"
    about = belief.domains[name]
    values = {**about.constraints, **about.booking}
    known = ", ".join(f"{slot} {'any' if value == DONT_CARE else value}" for slot, value in values.items())
    n_found = len(world.database.query(name, about.constraints))
    is_offered_always = bool(world.ontology[name].generated)
    parts = [
        known,
        f"wants {', '.join(about.requested)}" if about.requested else "",
        "offered" if about.offered else "",
        "booked" if about.reference else "",
        "" if is_offered_always else f"{n_found if n_found < _MANY else 'many'} found",
    ]
    return f"{name}: {'; '.join(filter(None, parts))}".rstrip(": ")
