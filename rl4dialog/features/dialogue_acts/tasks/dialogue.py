"""A dialogue from the agent's side: what it understands, believes and says, with rules for each, and for a policy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rl4dialog.features.dialogue_acts.tasks.acts import (
    BOOK,
    BOOKING,
    BOOKS,
    BYE,
    DONT_CARE,
    GENERAL,
    INFORM,
    NAMING,
    NO_BOOK,
    NO_OFFER,
    REQ_MORE,
    REQUEST,
    TELLING,
    ActVocabulary,
    DialogueAct,
)
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser, SemanticErrors
from rl4dialog.features.dialogue_acts.tasks.goals import Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import CHOICE, REFERENCE, Database, Domain, Ontology
from rl4dialog.features.dialogue_acts.tasks.placeholders import ReplyReader, filled, placeholders_in
from rl4dialog.features.dialogue_acts.tasks.templates import Templates
from rl4dialog.features.dialogue_acts.tasks.world import CorpusDialogue, CorpusTurn


@dataclass
class DomainBelief:
    """Belief about one domain."""

    constraints: dict[str, str] = field(default_factory=dict)  # what the user looks for, by slot
    booking: dict[str, str] = field(default_factory=dict)  # values of the booking, by slot
    # slots that the user asked for and that are not answered, in the order of the questions
    requested: list[str] = field(default_factory=list)
    offered: str = ""  # key of the entity that the agent named last; empty if there is none
    reference: str = ""  # reference number of the booking; empty if nothing is booked

    @property
    def known(self) -> dict[str, str]:
        """The constraints that do not admit every value."""
        return {slot: value for slot, value in self.constraints.items() if value != DONT_CARE}


class BeliefState:
    """Belief about the user's goal, updated by every utterance."""

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


class Booking(NamedTuple):
    """A booking that was made, or an offer that was made up from the user's constraints, such as a taxi."""

    domain: str
    entity: str  # key of the entity
    values: Mapping[str, str]  # what was booked, by slot; of an offer, the constraints
    reference: str  # the reference number; empty for an offer


@dataclass
class Said:
    """What the agent says."""

    acts: list[DialogueAct] = field(default_factory=list)  # acts with values, as the user hears them
    # value of each delexicalized act that was said with one
    values: dict[DialogueAct, str] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)  # bookings that were made by saying it
    n_unsayable: int = 0  # number of chosen acts that have no value and are therefore not said


class Lexicalizer:
    """Fills delexicalized acts with values.

    - Value ``"1"`` speaks of the entity that was offered last, if it still satisfies all constraints, and otherwise of
      the first entity that does; ``"2"`` speaks of the next one.
    - ``booking`` as a domain means the domain that was talked about last.
    - A domain with generated slots, such as a taxi, always has an offer once the required constraints are known.
    - Acts ``book`` and ``offerbooked`` make a booking with the values that the agent believes. The user hears all of
      these values and the reference number. If the values are not available, the user hears ``nobook`` instead.
    - An act without a value is not said: the third of two entities, an unknown phone number, a booking without its day.
    """

    def __init__(self, database: Database) -> None:
        self.ontology, self._database = database.ontology, database

    def say(self, acts: Iterable[DialogueAct], belief: BeliefState, goal: Goal | None = None) -> Said:
        """Fill acts with values. The `fail_book` values of the goal are not available; without a goal, all are."""
        said = Said()
        candidates: dict[str, Sequence[int]] = {}
        for act in acts:
            name = belief.active if act.domain == BOOKING else act.domain
            about = belief.domains.get(name)
            if about is None and act.domain == BOOKING:
                said.n_unsayable += 1
                continue
            if about is None:
                said.acts.append(act)
                continue
            spec = self.ontology[name]
            if act.intent in BOOKS:
                if not any(booking.domain == name for booking in said.bookings):
                    self._book(act, spec, about, goal, said)
                continue
            value = act.value
            if value:
                value = self._value(act, spec, about, candidates)
                if not value:
                    said.n_unsayable += 1
                    continue
                said.values[act] = value
            said.acts.append(DialogueAct(act.intent, name, act.slot, value))
            if spec.generated and act.slot == spec.key:
                said.bookings.append(Booking(name, value, dict(about.constraints), ""))
        return said

    def can_say(self, act: DialogueAct, belief: BeliefState) -> bool:
        """Whether a delexicalized act has a value in this state."""
        name = belief.active if act.domain == BOOKING else act.domain
        about = belief.domains.get(name)
        if about is None:
            return act.domain != BOOKING
        spec = self.ontology[name]
        if act.intent in BOOKS:
            return self._can_book(spec, about)
        return not act.value or bool(self._value(act, spec, about, {}))

    def candidates(self, name: str, belief: DomainBelief) -> Sequence[int]:
        """Numbers of the entities that satisfy all constraints, the offered one first."""
        found = self._database.query(name, belief.constraints)
        if belief.offered:
            key, entities = self.ontology[name].key, self._database.entities(name)
            for position, i in enumerate(found):
                if entities[i].get(key) == belief.offered:
                    return (i, *found[:position], *found[position + 1 :]) if position else found
        return found

    def _value(self, act: DialogueAct, spec: Domain, belief: DomainBelief, candidates: dict[str, Sequence[int]]) -> str:
        """The value of an act; empty if it has none. `candidates` keeps those of the domains of this utterance."""
        slot = act.slot
        if slot == REFERENCE:
            return belief.reference
        if slot in spec.bookable:
            return belief.booking.get(slot, "")
        if act.intent == NO_OFFER:
            return belief.constraints.get(slot, "")
        if act.intent not in NAMING:
            return ""
        if spec.generated:
            return self._generated(spec, slot, belief)
        if slot == CHOICE:
            return str(len(self._database.query(spec.name, belief.constraints)))
        if spec.name not in candidates:
            candidates[spec.name] = self.candidates(spec.name, belief)
        found, number = candidates[spec.name], int(act.value) - 1
        return self._database.entities(spec.name)[found[number]].get(slot, "") if number < len(found) else ""

    def _generated(self, spec: Domain, slot: str, belief: DomainBelief) -> str:
        """A value of an offer that is made up from the constraints, always the same for the same constraints."""
        if slot not in spec.generated:
            return belief.known.get(slot, "")
        if _missing(spec, belief):
            return ""
        entities = self._database.entities(spec.name)
        digest = _digest(spec.name, belief.constraints)
        return entities[digest % len(entities)].get(slot, "") if entities else ""

    def _can_book(self, spec: Domain, belief: DomainBelief) -> bool:
        known = all(slot in belief.booking for slot in spec.bookable)
        return bool(spec.bookable) and known and bool(self._database.query(spec.name, belief.constraints))

    def _book(self, act: DialogueAct, spec: Domain, belief: DomainBelief, goal: Goal | None, said: Said) -> None:
        if not self._can_book(spec, belief):
            said.n_unsayable += 1
            return
        values = {slot: belief.booking[slot] for slot in spec.bookable}
        taken = goal.domains[spec.name].fail_book if goal is not None and spec.name in goal.domains else {}
        if taken and all(values[slot] == value for slot, value in taken.items()):
            refusal = DialogueAct(NO_BOOK, spec.name)
            if refusal not in said.acts:  # other acts of the same booking
                said.acts.append(refusal)
            return
        entity = self._database.entities(spec.name)[self.candidates(spec.name, belief)[0]].get(spec.key, "")
        reference = f"{_digest(spec.name, {**values, spec.key: entity}):08X}"
        said.bookings.append(Booking(spec.name, entity, values, reference))
        told = {spec.key: entity, **values, REFERENCE: reference}
        said.acts += [DialogueAct(act.intent, spec.name, slot, value) for slot, value in told.items()]
        said.values[act] = told.get(act.slot, "")


def _missing(spec: Domain, belief: DomainBelief) -> tuple[str, ...]:
    """What an offer that is made up still needs: the first group of slots without a constraint."""
    missing = (group for group in spec.required if not any(slot in belief.constraints for slot in group))
    return next(missing, ())


def _digest(name: str, values: Mapping[str, str]) -> int:
    """A number below 2**32 that depends on the values only."""
    text = "\n".join((name, *(f"{slot}={value}" for slot, value in sorted(values.items()))))
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "big")


class Exchange(NamedTuple):
    """A turn of the agent, with the user's utterance before it."""

    user: tuple[DialogueAct, ...]
    heard: tuple[DialogueAct, ...]  # what the agent understood
    chosen: tuple[DialogueAct, ...]  # the agent's delexicalized acts
    said: tuple[DialogueAct, ...]  # the agent's acts with values, as the user understands them
    bookings: tuple[Booking, ...] = ()
    text: str = ""  # the agent's words; empty if acts reach the user as acts


class TaskDialogue:
    """The turns of a dialogue so far, and the agent's belief.

    The user hears at most `max_acts` acts a turn; of more, that many are drawn. All randomness is from `rng`.
    """

    def __init__(
        self,
        goal: Goal,
        belief: BeliefState,
        lexicalizer: Lexicalizer,
        rng: np.random.Generator,
        errors: SemanticErrors | None = None,
        max_acts: int | None = None,
    ) -> None:
        self.goal, self.belief = goal, belief
        self.told: Sequence[DialogueAct] = ()
        self.heard: list[DialogueAct] = []
        self.exchanges: list[Exchange] = []
        self._lexicalizer, self._rng, self._errors, self._max_acts = lexicalizer, rng, errors, max_acts

    def listen(self, told: Sequence[DialogueAct], heard: list[DialogueAct] | None = None) -> None:
        """Hear an utterance of the user, by default with semantic errors, and update the belief."""
        self.told = told
        self.heard = self.with_errors(told) if heard is None else heard
        self.belief.hear(self.heard)

    def with_errors(self, acts: Sequence[DialogueAct]) -> list[DialogueAct]:
        return list(acts) if self._errors is None else self._errors.understood(acts, self._rng)

    def say(self, chosen: Sequence[DialogueAct]) -> tuple[Said, int]:
        """Say delexicalized acts, and update the belief; also returns how many the user does not hear."""
        spoken = chosen
        if self._max_acts is not None and len(chosen) > self._max_acts:
            kept = self._rng.choice(len(chosen), self._max_acts, replace=False)
            spoken = [chosen[i] for i in sorted(kept)]
        said = self._lexicalizer.say(spoken, self.belief, self.goal)
        self.belief.say(said.acts)
        self.exchanges.append(
            Exchange(tuple(self.told), tuple(self.heard), tuple(chosen), tuple(said.acts), tuple(said.bookings))
        )
        return said, len(chosen) - len(spoken)

    def say_text(self, text: str, reader: ReplyReader) -> Said:
        """Say what a user understands of words with placeholders, and hears with values."""
        said, _ = self.say(reader.read(text, self.belief.active))
        values = {act[1:]: value for act, value in said.values.items()}
        for _, name, slot, number in placeholders_in(text):  # "no [restaurant_food] restaurants" is about a constraint
            about = self.belief.domains.get(name)
            if number == "1" and about is not None and slot in about.known:
                values.setdefault((name, slot, number), about.known[slot])
        self.reword(filled(text, values))
        return said

    def reword(self, text: str, reaching: Sequence[DialogueAct] | None = None) -> None:
        last = self.exchanges[-1]
        self.exchanges[-1] = last._replace(text=text, said=last.said if reaching is None else tuple(reaching))


class RulePolicy:
    """Answers what was asked, asks for one missing constraint at a time, offers, and books.

    It asks for another constraint while at least `many` entities fit, and repeats `told` constraints with an offer, so
    that the user can correct them. For an act that its vocabulary lacks, it says the one of the domain ``booking``; for
    ``nooffer``, that the number of choices is 0; for a request, ``reqmore``, after which the user repeats itself; and
    for ``reqmore``, its offer or, at the beginning, a request for a constraint.
    """

    def __init__(
        self, lexicalizer: Lexicalizer, many: int = 4, told: int = 0, vocabulary: ActVocabulary | None = None
    ) -> None:
        self._ontology, self._lexicalizer = lexicalizer.ontology, lexicalizer
        self._many, self._told, self._vocabulary = many, told, vocabulary

    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        """Choose delexicalized acts."""
        return [self._sayable(act, belief.active) for act in self._chosen(belief, heard)]

    def _sayable(self, act: DialogueAct, active: str) -> DialogueAct:
        """The act, or one of the vocabulary that does the same."""
        if self._vocabulary is None or act in self._vocabulary:
            return act
        if act.intent == NO_OFFER:
            return DialogueAct(INFORM, act.domain, CHOICE, "1")
        if act.intent == REQ_MORE and active:
            return DialogueAct(INFORM, active, self._ontology[active].key, "1")
        if act.intent == REQ_MORE:
            requests = (each for each in self._vocabulary.acts if each.intent == REQUEST)
            return next((each for each in requests if each.slot in self._ontology[each.domain].informable), act)
        of_booking = act._replace(domain=BOOKING)
        if act.intent == REQUEST and of_booking not in self._vocabulary:
            return self._sayable(DialogueAct(REQ_MORE, GENERAL), active)
        return of_booking

    def _chosen(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        if any(act.intent == BYE for act in heard):
            return [DialogueAct(BYE, GENERAL)]
        name = belief.active
        if not name:
            return [DialogueAct(REQ_MORE, GENERAL)]
        spec, about = self._ontology[name], belief.domains[name]
        if spec.generated:
            if missing := _missing(spec, about):
                return [DialogueAct(REQUEST, name, slot) for slot in missing]
            return _answers(name, [*spec.generated, *[*about.known][: self._told]])
        found = self._lexicalizer.candidates(name, about)
        if not found:
            return [DialogueAct(NO_OFFER, name)]
        asked = [slot for slot in about.requested if slot != REFERENCE]
        open_slots = [slot for slot in spec.informable if slot not in about.constraints and slot != spec.key]
        if not about.offered and not asked and len(found) >= self._many and open_slots:
            return [DialogueAct(REQUEST, name, open_slots[0])]
        if about.booking and not about.reference and (about.offered or len(about.booking) == len(spec.bookable)):
            for slot in spec.bookable:
                if slot not in about.booking:
                    return [DialogueAct(REQUEST, name, slot)]
            return [*_answers(name, asked), DialogueAct(BOOK, name, REFERENCE, "1")]
        if REFERENCE in about.requested and about.reference:
            asked = [*asked, REFERENCE]
        repeated = [slot for slot in about.known if slot != spec.key][: self._told]
        offer = [spec.key, *repeated] if not about.offered or asked else []
        # Without an act here, an entity is offered already, and nothing is asked.
        return _answers(name, dict.fromkeys([*offer, *asked])) or [DialogueAct(REQ_MORE, GENERAL)]


def _answers(name: str, slots: Iterable[str]) -> list[DialogueAct]:
    return [DialogueAct(INFORM, name, slot, "1") for slot in slots]


def simulate(
    policy: RulePolicy,
    user: AgendaUser,
    lexicalizer: Lexicalizer,
    goal: Goal,
    rng: np.random.Generator,
    max_turns: int = 20,
    errors: SemanticErrors | None = None,
) -> list[Exchange]:
    """Hold a dialogue, without an environment, until the user leaves; `user.is_complete` is about it afterwards."""
    dialogue = TaskDialogue(goal, BeliefState(lexicalizer.ontology), lexicalizer, rng, errors)
    told = user.reset(goal, rng)
    while not user.is_over and len(dialogue.exchanges) < max_turns:
        dialogue.listen(told)
        said, _ = dialogue.say(policy.act(dialogue.belief, dialogue.heard))
        told = user.reply(said.acts)
    return dialogue.exchanges


def corpus_dialogue(
    id: str, goal: Goal, exchanges: Sequence[Exchange], templates: Templates | None = None
) -> CorpusDialogue:
    """A simulated dialogue as one of a corpus: what was understood, and what was said; without templates, no words."""
    turns = []
    for each in exchanges:
        words = ("", "")
        if templates is not None:
            words = templates.render(each.user, "user"), templates.render(each.said, "agent")
        turns.append(CorpusTurn(each.heard, each.said, *words))
    return CorpusDialogue(id, tuple(turns), goal)
