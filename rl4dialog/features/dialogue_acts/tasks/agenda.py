"""The agenda-based user simulator, and what the agent misunderstands of the user's acts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import ConfigDict
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Count
from rl4dialog.features.dialogue_acts.tasks.acts import (
    BOOKS,
    BYE,
    DONT_CARE,
    GENERAL,
    INFORM,
    NO_BOOK,
    NO_OFFER,
    REQUEST,
    SELECT,
    TELLING,
    DialogueAct,
)
from rl4dialog.features.dialogue_acts.tasks.goals import Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import CHOICE, REFERENCE, Domain, Ontology, satisfies

_DELETIONS = 0.5  # share of errors that delete the act


class SemanticErrors:
    """Deletes or changes a share of the user's acts on their way to the agent, as in PyDial (arXiv 1711.11023).

    This stands for the errors of speech recognition and language understanding. The user and the evaluation know the
    true acts. An error deletes an act, or changes its value or, for a request, its slot; acts without another value are
    deleted. Acts of the domain ``general`` are always understood. At rate 0, nothing is drawn.
    """

    def __init__(self, rate: float, ontology: Ontology, values: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self.rate, self._ontology, self._values = rate, ontology, values

    def understood(self, acts: Iterable[DialogueAct], rng: np.random.Generator) -> list[DialogueAct]:
        if self.rate == 0:
            return list(acts)
        acts, found = list(acts), []
        for act, draw in zip(acts, rng.random(len(acts)).tolist(), strict=True):
            if draw >= self.rate or act.domain == GENERAL:
                found.append(act)
            elif rng.random() >= _DELETIONS:
                found += self._changed(act, rng)
        return list(dict.fromkeys(found))

    def _changed(self, act: DialogueAct, rng: np.random.Generator) -> list[DialogueAct]:
        """The act with another slot or value; none if there is no other."""
        name, values = "value", self._values.get(act.domain, {}).get(act.slot, ())
        if act.intent == REQUEST:
            name, values = "slot", self._ontology[act.domain].requestable if act.domain in self._ontology else ()
        elif act.intent != INFORM or not act.slot:
            return []
        own = getattr(act, name)
        if all(value == own for value in values):
            return []
        while True:
            value = values[int(rng.random() * len(values))]
            if value != own:
                return [act._replace(**{name: value})]


_GOODBYE = DialogueAct(BYE, GENERAL)


class UserSettings(TypedDict, total=False):
    """Arguments of `AgendaUser` that a config can set."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    max_acts: Count
    patience: Count | None


class AgendaUser:
    """A user who pursues a goal with a stack of acts to say (Schatzmann et al. 2007, agenda-based user simulation).

    The user comes to the goal's domains one after the other: first all constraints, then the requests, then the
    booking. To what the agent says, it reacts as follows:

    - It answers a request with the value of its goal, ``dontcare`` for another constraint, or a place for the ends of a
      taxi ride: one that it was offered in this dialogue, if there is one, and otherwise any.
    - It corrects a value that contradicts its goal.
    - It notes answers to its requests, once all of its constraints are said.
    - After ``nooffer`` or ``nobook``, it replaces its first constraints or values by the others of its goal. If there
      are none, it repeats them once. After that it gives up.
    - It asks again for what is not answered, offered or booked yet.

    It says goodbye once, at the end: when all is done, when it gives up, or when its patience ends.
    """

    def __init__(
        self,
        ontology: Ontology,
        max_acts: int = 4,
        patience: int | None = None,
        places: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        self._ontology, self._max_acts, self._patience = ontology, max_acts, patience
        self._places = places or {}

    def reset(self, goal: Goal, rng: np.random.Generator) -> list[DialogueAct]:
        """Begin a dialogue, whose randomness is all from `rng`; returns the first utterance."""
        self.goal, self._rng = goal, rng
        self._left = list(goal.domains)
        self._info = {name: wanted.first_info for name, wanted in goal.domains.items()}
        self._book = {name: wanted.first_book for name, wanted in goal.domains.items()}
        self._open = {name: list(wanted.requests) for name, wanted in goal.domains.items()}
        self._offered: set[str] = set()
        self._booked: set[str] = set()
        self._found: dict[str, str] = {}
        self._setbacks: dict[str, int] = {}
        self._stack: list[DialogueAct] = []
        self._last: list[DialogueAct] = []
        self._n_same = 0
        self.is_over = self.has_given_up = False
        self._begin_domain()
        return self._speak()

    @property
    def is_complete(self) -> bool:
        return all(self._is_done(name) for name in self.goal.domains)

    def reply(self, acts: Sequence[DialogueAct]) -> list[DialogueAct]:
        """Hear the agent's acts with values, and answer; ``bye`` at the end."""
        about = [act for act in acts if act.domain in self.goal.domains]
        wrong = {act.domain for act in about if act.intent in TELLING and not self._accepts(act)}
        self._offered -= wrong
        self._booked -= wrong
        for act in about:
            self._hear(act, act.domain in wrong)
        if self.has_given_up:
            return self._leave()
        while self._left and not self._unsaid(self._left[0]) and self._is_done(self._left[0]):
            self._left.pop(0)
            self._begin_domain()
        return self._speak()

    def _is_done(self, name: str) -> bool:
        return not self._open[name] and name in self._offered and self._is_booked(name)

    def _is_booked(self, name: str) -> bool:
        return name in self._booked or not self._book[name]

    def _unsaid(self, name: str) -> bool:
        return any(act.domain == name for act in self._stack)

    def _begin_domain(self) -> None:
        """Put the constraints of the next domain on the stack, in random order."""
        if self._left:
            name = self._left[0]
            acts = [DialogueAct(INFORM, name, slot, value) for slot, value in self._info[name].items()]
            self._rng.shuffle(acts)  # type: ignore[arg-type]
            self._push(acts or [DialogueAct(INFORM, name)])

    def _push(self, acts: Iterable[DialogueAct]) -> None:
        """Put acts on top of the stack, the first one topmost; each act is there once."""
        for act in reversed(list(acts)):
            if act in self._stack:
                self._stack.remove(act)
            self._stack.append(act)

    def _wanted(self, act: DialogueAct) -> str | None:
        """The value that the user wants for the slot of an act; ``None`` if it does not matter."""
        in_booking = act.slot in self._ontology[act.domain].bookable
        return (self._book if in_booking else self._info)[act.domain].get(act.slot)

    def _accepts(self, act: DialogueAct) -> bool:
        wanted = self._wanted(act)
        return wanted is None or satisfies(self._ontology[act.domain], act.slot, act.value, wanted)

    def _hear(self, act: DialogueAct, is_wrong: bool) -> None:
        """React to one act. `is_wrong`: something said about this domain contradicts the goal."""
        intent, name, slot, value = act
        spec = self._ontology[name]
        if intent == REQUEST or (intent == SELECT and not value):
            self._answer(spec, slot)
        elif is_no_offer(act):
            self._replace(name, self._info[name], self.goal.domains[name].info)
        elif intent == NO_BOOK and self._book[name]:
            self._replace(name, self._book[name], self.goal.domains[name].book)
        elif intent in TELLING and slot:
            if not self._accepts(act):
                self._push([DialogueAct(INFORM, name, slot, self._wanted(act) or "")])
            elif not is_wrong:
                self._note(spec, act)

    def _note(self, spec: Domain, act: DialogueAct) -> None:
        """Take a value as an offer, a booking or an answer, unless the user has not come to this domain yet."""
        intent, name, slot, value = act
        if name in self._left[1:]:
            return
        if slot == spec.key and intent != SELECT:
            self._offered.add(name)
            self._found[name] = value
        elif slot == REFERENCE and intent in BOOKS:
            self._booked.add(name)
        unsaid = (act for act in self._stack if act.domain == name and act.intent == INFORM)
        if slot in self._open[name] and not any(act.slot in self._info[name] for act in unsaid):
            self._open[name].remove(slot)

    def _answer(self, spec: Domain, slot: str) -> None:
        name, known = spec.name, {**self._book[spec.name], **self._info[spec.name]}
        if slot not in known and slot in self._places.get(name, {}):
            known[slot] = self._info[name][slot] = self._place(name, slot)
        if slot in known or slot in spec.informable:
            self._push([DialogueAct(INFORM, name, slot, known.get(slot, DONT_CARE))])

    def _place(self, name: str, slot: str) -> str:
        """An end of a ride that is not its other end."""
        taken = self._info[name].values()
        places = [place for place in self._places[name][slot] if place not in taken]
        found = [place for place in self._found.values() if place in places]
        return found[0] if found else places[int(self._rng.integers(len(places)))]

    def _replace(self, name: str, current: dict[str, str], final: Mapping[str, str]) -> None:
        changed = {slot: value for slot, value in final.items() if current.get(slot) != value}
        dropped = [slot for slot in current if slot not in final and slot not in self._places.get(name, {})]
        if not changed and not dropped:
            if self._unsaid(name):  # the refusal is not about what the user wants now
                return
            self._setbacks[name] = self._setbacks.get(name, 0) + 1
            if self._setbacks[name] > 1 or not final:
                self.has_given_up = True
                return
            changed = dict(final)
        for slot in dropped:
            del current[slot]
        current.update(changed)
        self._offered.discard(name)
        told = {**dict.fromkeys(dropped, DONT_CARE), **changed}
        self._push(DialogueAct(INFORM, name, slot, value) for slot, value in told.items())

    def _speak(self) -> list[DialogueAct]:
        if not self._left:
            return self._leave()
        said = self._pop() if self._stack else self._next_question()
        self._n_same = self._n_same + 1 if said == self._last else 1
        self._last = said
        if self._patience is not None and self._n_same >= self._patience:
            self.has_given_up = True
            return self._leave()
        return said

    def _pop(self) -> list[DialogueAct]:
        """Take acts of one domain and intent from the top of the stack."""
        top = self._stack[-1]
        said: list[DialogueAct] = []
        while self._stack and len(said) < self._max_acts and self._stack[-1][:2] == top[:2]:
            said.append(self._stack.pop())
        return said

    def _next_question(self) -> list[DialogueAct]:
        """Ask for what the domain still lacks: an offer or answers, then the booking."""
        name = self._left[0]
        key = self._ontology[name].key
        wanted = [slot for slot in self._open[name] if slot != REFERENCE or self._is_booked(name)]
        if name not in self._offered and key not in wanted:
            wanted.append(key)
        if wanted:
            return [DialogueAct(REQUEST, name, slot) for slot in wanted[: self._max_acts]]
        return [DialogueAct(INFORM, name, slot, value) for slot, value in self._book[name].items()][: self._max_acts]

    def _leave(self) -> list[DialogueAct]:
        self.is_over = True
        return [_GOODBYE]


def is_no_offer(act: DialogueAct) -> bool:
    """Whether the agent says that nothing satisfies the constraints: ``nooffer``, or zero choices."""
    return act.intent == NO_OFFER or (act.slot == CHOICE and act.value == "0")
