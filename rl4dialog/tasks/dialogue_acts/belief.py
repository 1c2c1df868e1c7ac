"""What the agent believes: the user's constraints, requests and bookings, by fixed rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rl4dialog.tasks.dialogue_acts.acts import INFORM, REQUEST, TELLING, DialogueAct
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Ontology


@dataclass
class DomainBelief:
    """Belief about one domain.

    Attributes:
        constraints: What the user looks for, by slot.
        booking: Values of the booking, by slot.
        requested: Slots that the user asked for and that are not answered, in the order of the questions.
        offered: Key of the entity that the agent named last; empty if there is none.
        reference: Reference number of the booking; empty if nothing is booked.
    """

    constraints: dict[str, str] = field(default_factory=dict)
    booking: dict[str, str] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    offered: str = ""
    reference: str = ""


class BeliefState:
    """Belief about the user's goal, updated by every utterance.

    Args:
        ontology: The domains.

    Attributes:
        domains: Belief about each domain.
        active: The domain that was talked about last; empty before that.
    """

    def __init__(self, ontology: Ontology) -> None:
        self._ontology = ontology
        self.domains = {name: DomainBelief() for name in ontology.domains}
        self.active = ""

    def hear(self, acts: Iterable[DialogueAct]) -> None:
        """Update the belief by what the agent understood of the user's utterance. Acts of unknown slots are ignored."""
        for intent, name, slot, value in acts:
            belief = self.domains.get(name)
            if belief is None:
                continue
            self.active = name
            if intent == REQUEST:
                if slot not in belief.requested:
                    belief.requested.append(slot)
            elif intent == INFORM:
                spec = self._ontology[name]
                if slot in spec.informable:
                    if belief.constraints.get(slot) != value:
                        belief.constraints[slot] = value
                        belief.offered = belief.reference = ""  # other entities may fit now
                elif slot in spec.bookable and belief.booking.get(slot) != value:
                    belief.booking[slot] = value
                    belief.reference = ""

    def say(self, acts: Iterable[DialogueAct]) -> None:
        """Update the belief by what the agent said, with values."""
        for intent, name, slot, value in acts:
            belief = self.domains.get(name)
            if belief is None:
                continue
            self.active = name
            if intent not in TELLING or not slot:
                continue
            if slot in belief.requested:
                belief.requested.remove(slot)
            if slot == self._ontology[name].key:
                belief.offered = value
            elif slot == REFERENCE:
                belief.reference = value
