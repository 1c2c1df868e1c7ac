"""Made-up rides: a customer wants one, a careless clerk books it before it knows everything, and a tool books it.

The customer is the partner ``facts``, who answers questions about the ride.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.features.tools.calls import Slot, Tool, write_text
from rl4dialog.features.tools.right_calls import GOLD_KEY
from rl4dialog.partners.scripted import FactsPartner
from rl4dialog.tasks.playing import SeededPlayer

FUNCTION = "book_ride"
SLOTS = {
    "name": ("ann", "bob", "cleo", "dan", "eve", "finn"),
    "place": ("airport", "harbor", "market", "museum", "station", "zoo"),
    "time": ("eight", "eleven", "five", "noon", "seven", "three"),
}
QUESTIONS = {"name": "what is your name ?", "place": "which place do you go to ?", "time": "at what time ?"}
_FACTS = {"name": "my name is {} .", "place": "the place is the {} .", "time": "the time is {} ."}
_OPENINGS = ("hello , i need a ride .", "a ride , please .", "can you book me a ride ?")


class RideBooking(Tool):
    """Books rides; the function ``book_ride`` has the slots ``name``, ``place`` and ``time``."""

    functions: Mapping[str, Mapping[str, Slot]] = {
        FUNCTION: {"name": Slot(), "place": Slot(SLOTS["place"]), "time": Slot(SLOTS["time"])}
    }

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        return f"booked for {arguments['name']} ."


class Clerk(SeededPlayer):
    """Asks for what it does not know, then books; a careless one asks at random, and guesses what it does not know."""

    def __init__(self, is_careless: bool) -> None:
        super().__init__()
        self._is_careless = is_careless

    def say(self, history: list[str]) -> str:
        said = " ".join(history[2::2]).split()  # the answers
        known = {slot: next((value for value in values if value in said), None) for slot, values in SLOTS.items()}
        unknown = [slot for slot, value in known.items() if value is None]
        if unknown if not self._is_careless else self._rng.random() < 0.75:
            return QUESTIONS[self._rng.choice([*SLOTS] if self._is_careless else unknown)]
        chosen = {slot: known[slot] or self._rng.choice(values) for slot, values in SLOTS.items()}
        return write_text(FUNCTION, chosen)


class Rides(TextGenPool):
    """Made-up customers who want a ride, without files; the right call is in ``meta_data["gold_call"]``.

    The dialogues are those of a careless clerk. The facts for the partner ``facts`` are in ``partner_persona``.

    Args:
        max_turns: Maximum number of the clerk's utterances in a dialogue.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 4000,
        n_val: Count = 100,
        n_test: Count = 200,
        max_turns: Count = 6,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> Rides:
        """Generate one split."""
        form = DialogueFormat(format, None, render_chat, in_conversation=True)
        n = size_of(split, n_train, n_val, n_test)
        samples = [_sample(f"{split}_{i}", f"rides/{seed}/{split}/{i}", max_turns, form) for i in range(n)]
        pool = cls(samples, dialogue_format=form)
        pool.players = {"careless": partial(Clerk, True), "careful": partial(Clerk, False)}
        return pool


def _sample(id: str, seed: str, max_turns: int, form: DialogueFormat) -> Sample:
    rng = random.Random(seed)
    wanted = {slot: rng.choice(values) for slot, values in SLOTS.items()}
    opening = rng.choice(_OPENINGS)
    facts = [_FACTS[slot].format(value) for slot, value in wanted.items()]
    info = {"partner_persona": facts, GOLD_KEY: {"name": FUNCTION, "arguments": wanted}}
    clerk, customer, said = Clerk(True), FactsPartner(), [opening]
    clerk.reset(info, rng.randrange(2**31))
    customer.reset(info, 0)
    for _ in range(max_turns):
        said.append(clerk.say(said))
        if said[-1] not in QUESTIONS.values():
            break
        said.append(customer.reply(said))
    info |= {"history": [opening], "continuation": said[2:]}
    return Sample(id, form.prompt([opening]), [said[1]], info)
