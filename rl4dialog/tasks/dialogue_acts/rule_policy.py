"""A rule policy: ceiling or floor of evaluations, and demonstrator."""

from __future__ import annotations

from rl4dialog.tasks.dialogue_acts.acts import (
    BOOK,
    BOOKING,
    BYE,
    DONT_CARE,
    GENERAL,
    INFORM,
    NO_OFFER,
    REQ_MORE,
    REQUEST,
    ActVocabulary,
    DialogueAct,
)
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.ontology import CHOICE, REFERENCE, Ontology


class RulePolicy:
    """Answers what was asked, asks for one missing constraint at a time, offers, and books.

    Args:
        ontology: The domains.
        lexicalizer: Finds the entities that fit.
        many: The policy asks for another constraint while at least this number of entities fit.
        told: Constraints that it repeats with an offer, so that the user can correct them.
        vocabulary: The agent's acts. For an act that it lacks, the policy says the one of the domain ``booking``, for
            ``nooffer``, that the number of choices is 0, for a request, ``reqmore``, after which the user repeats
            itself, and for ``reqmore``, its offer or, at the beginning, a request for a constraint.
    """

    def __init__(
        self,
        ontology: Ontology,
        lexicalizer: Lexicalizer,
        many: int = 4,
        told: int = 0,
        vocabulary: ActVocabulary | None = None,
    ) -> None:
        self._ontology, self._lexicalizer, self._many, self._told = ontology, lexicalizer, many, told
        self._vocabulary = vocabulary

    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        """Choose delexicalized acts.

        Args:
            belief: The belief, with what was heard.
            heard: The user's last acts, as understood.
        """
        return [self._sayable(act, belief.active) for act in self._chosen(belief, heard)]

    def _sayable(self, act: DialogueAct, active: str) -> DialogueAct:
        """The act, or one of the vocabulary that does the same."""
        if self._vocabulary is None or act in self._vocabulary:
            return act
        if act.intent == NO_OFFER:
            return DialogueAct(INFORM, act.domain, CHOICE, "1")
        if act.intent == REQ_MORE:
            offer = DialogueAct(INFORM, active, self._ontology[active].key, "1") if active else None
            return offer or next(filter(self._asks_for_a_constraint, self._vocabulary.acts), act)
        of_booking = act._replace(domain=BOOKING)
        if act.intent == REQUEST and of_booking not in self._vocabulary:
            return self._sayable(DialogueAct(REQ_MORE, GENERAL), active)
        return of_booking

    def _asks_for_a_constraint(self, act: DialogueAct) -> bool:
        return act.intent == REQUEST and act.slot in self._ontology[act.domain].informable

    def _chosen(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        if any(act.intent == BYE for act in heard):
            return [DialogueAct(BYE, GENERAL)]
        name = belief.active
        if not name:
            return [DialogueAct(REQ_MORE, GENERAL)]
        spec, about = self._ontology[name], belief.domains[name]
        if spec.generated:
            for group in spec.required:
                if not any(slot in about.constraints for slot in group):
                    return [DialogueAct(REQUEST, name, slot) for slot in group]
            known = [slot for slot, value in about.constraints.items() if value != DONT_CARE]
            return self._answers(name, [*spec.generated, *known[: self._told]])
        found = self._lexicalizer.candidates(name, about)
        if not found:
            return [DialogueAct(NO_OFFER, name)]
        asked = [slot for slot in about.requested if slot != REFERENCE]
        open_slots = [slot for slot in spec.informable if slot not in about.constraints and slot != spec.key]
        if not about.offered and not asked and len(found) >= self._many and open_slots:
            return [DialogueAct(REQUEST, name, open_slots[0])]
        if about.booking and not about.reference and (about.offered or len(about.booking) == len(spec.bookable)):
            missing = [slot for slot in spec.bookable if slot not in about.booking]
            if missing:
                return [DialogueAct(REQUEST, name, missing[0])]
            return [*self._answers(name, asked), DialogueAct(BOOK, name, REFERENCE, "1")]
        if REFERENCE in about.requested and about.reference:
            asked = [*asked, REFERENCE]
        offer = [DialogueAct(INFORM, name, spec.key, "1")] if not about.offered or asked else []
        repeated = [slot for slot, value in about.constraints.items() if value != DONT_CARE and slot != spec.key]
        told = [DialogueAct(INFORM, name, slot, "1") for slot in repeated[: self._told]] if offer else []
        acts = list(dict.fromkeys([*offer, *told, *self._answers(name, asked)]))
        if acts:
            return acts
        return [DialogueAct(INFORM, name, CHOICE, "1")] if not about.offered else [DialogueAct(REQ_MORE, GENERAL)]

    @staticmethod
    def _answers(name: str, slots: list[str]) -> list[DialogueAct]:
        return [DialogueAct(INFORM, name, slot, "1") for slot in slots]
