"""The course of small dialogues: a Markov chain over acts, and the choice of a phrase that fits the situation.

The act of an utterance depends only on the previous act, with one likely and one or two less likely continuations. The
next act can therefore be predicted better than by chance, but not with certainty: the most likely act is right in about
two of three cases, an act drawn from the chain in about one of two.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl4dialog.core.types import Dialogue, Turn
from rl4dialog.data.labels import COMMISSIVE, DIRECTIVE, HAPPINESS, INFORM, NO_EMOTION, QUESTION, SURPRISE
from rl4dialog.data.small_talk.frame import Frame, pick
from rl4dialog.data.small_talk.phrases import (
    ANY_QUESTION,
    COUNTER_QUESTIONS,
    DIRECTIVES,
    FOLLOW_UP_QUESTIONS,
    LISTENER,
    QUESTIONS,
    STATEMENTS,
    TELLER,
    THING_COUNTER_QUESTIONS,
    THING_QUESTION,
    Directive,
    Phrase,
    Question,
)
from rl4dialog.data.small_talk.words import TOPICS

MIN_TURNS, MAX_TURNS = 4, 12

FIRST_ACT = {INFORM: 0.5, QUESTION: 0.4, DIRECTIVE: 0.1}
NEXT_ACT = {
    INFORM: {QUESTION: 0.66, DIRECTIVE: 0.18, INFORM: 0.16},
    QUESTION: {INFORM: 0.68, QUESTION: 0.19, DIRECTIVE: 0.13},
    DIRECTIVE: {COMMISSIVE: 0.68, QUESTION: 0.2, INFORM: 0.12},
    COMMISSIVE: {INFORM: 0.66, QUESTION: 0.34},
}
# Acts that can end a dialogue.
_LAST_ACTS = (INFORM, COMMISSIVE)
_ACCEPT_SHARE = {True: 0.85, False: 0.5}

_ALL_QUESTIONS = {**QUESTIONS, **COUNTER_QUESTIONS, **FOLLOW_UP_QUESTIONS}
_THING_SLOTS = {"it", "one", "many", "thing", "things"}


def generate_dialogue(id: str, seed: str) -> Dialogue:
    """Generate one dialogue.

    Args:
        id: Id of the dialogue.
        seed: Random seed, which determines everything else.

    Returns:
        4 to 12 turns of two alternating speakers, each labeled with act and emotion, and the name of the topic.
    """
    rng = random.Random(seed)
    topic = pick(rng, TOPICS)
    acts = draw_acts(rng)
    conversation = _Conversation(rng, Frame(rng, topic))
    # Only the teller can start with an inform.
    teller_begins = acts[0] == INFORM or rng.random() < 0.5
    turns = []
    for index, act in enumerate(acts):
        role = TELLER if (index % 2 == 0) == teller_begins else LISTENER
        text, emotion = conversation.say(act, role, is_last=index == len(acts) - 1)
        turns.append(Turn(text, index % 2, act, emotion))
    return Dialogue(id, tuple(turns), topic.name)


def draw_acts(rng: random.Random) -> list[int]:
    """Draw the acts of a dialogue.

    Its end depends only on previous acts, not on the next one, so that ends do not change the shares of `NEXT_ACT`.
    """
    acts = [_draw(rng, FIRST_ACT)]
    while len(acts) < MAX_TURNS:
        acts.append(_draw(rng, NEXT_ACT[acts[-1]]))
        if len(acts) >= MIN_TURNS and acts[-1] in _LAST_ACTS and rng.random() < (len(acts) - 1) / 16:
            break
    while acts[-1] not in _LAST_ACTS and len(acts) > MIN_TURNS:
        acts.pop()
    return acts


def _draw(rng: random.Random, shares: Mapping[int, float]) -> int:
    point = rng.random()
    for act, share in shares.items():
        point -= share
        if point < 0:
            return act
    return next(iter(shares))


@dataclass
class _Last:
    """The last utterance, which the next one has to fit: its act and its subject."""

    act: int | None = None
    emotion: int = NO_EMOTION
    about_thing: bool = False
    question: Question | None = None
    directive: Directive | None = None
    accepted: bool = False


class _Conversation:
    """Chooses utterances, and avoids repetitions."""

    def __init__(self, rng: random.Random, frame: Frame) -> None:
        self._rng = rng
        self._frame = frame
        self._last = _Last()
        self._used: set[str] = set()

    def say(self, act: int, role: str, is_last: bool) -> tuple[str, int]:
        """Return an utterance with the given act, and its emotion."""
        last, self._last = self._last, _Last(act)
        if act == INFORM:
            choices = self._informs(last, role, is_last)
        elif act == QUESTION:
            self._last.question = self._choose_question(last, role)
            choices = self._last.question.say
        elif act == DIRECTIVE:
            self._last.directive = self._choose_directive(last, role)
            choices = self._last.directive.say
        else:
            choices = self._commissives(last, role)
        sayable = {phrase.text: phrase for phrase in self._sayable(choices, role)}
        phrase = sayable[self._unused(list(sayable))]
        text, self._last.emotion = self._frame.say(phrase, role)
        self._last.about_thing = bool(phrase.slots & _THING_SLOTS)
        return text, self._last.emotion

    def _informs(self, last: _Last, role: str, is_last: bool) -> Sequence[Phrase]:
        if last.question is not None:
            # Set before words are chosen, which from here on are "the red hat" instead of "a red hat".
            self._frame.told = self._frame.told or last.question.tells
            return last.question.answers
        if last.directive is not None:
            if last.act == DIRECTIVE:
                return last.directive.objections
            return last.directive.thanks if last.accepted else last.directive.regrets
        if is_last and self._frame.told:
            return STATEMENTS["farewells"]
        if role == TELLER and not self._frame.told:
            self._frame.told = True
            return STATEMENTS["story"]
        if role == TELLER:
            return STATEMENTS["more_story"]
        if last.emotion == HAPPINESS:
            return STATEMENTS["glad"]
        if last.emotion not in (NO_EMOTION, SURPRISE):
            return STATEMENTS["sorry"]
        return STATEMENTS["curious"] if last.about_thing else STATEMENTS["noted"]

    def _choose_question(self, last: _Last, role: str) -> Question:
        kinds: Iterable[str] = QUESTIONS
        if last.question is not None:
            kinds = COUNTER_QUESTIONS if last.about_thing else COUNTER_QUESTIONS.keys() - THING_COUNTER_QUESTIONS
        elif last.directive is not None and last.act == DIRECTIVE:
            kinds = last.directive.doubts
        elif last.directive is not None:
            kinds = last.directive.then_ask if last.accepted else last.directive.regret_ask
        known = self._frame.known
        fitting = [
            kind
            for kind in _ALL_QUESTIONS
            if kind in kinds and _ALL_QUESTIONS[kind].about not in known and self._fits(_ALL_QUESTIONS[kind], role)
        ]
        return _ALL_QUESTIONS[self._unused(fitting)]

    def _choose_directive(self, last: _Last, role: str) -> Directive:
        if last.act is None:
            return DIRECTIVES["join"]
        places = {True: (ANY_QUESTION, THING_QUESTION), False: (ANY_QUESTION,)}[last.about_thing]
        fitting = [
            kind
            for kind, directive in DIRECTIVES.items()
            if (directive.after_question in places if last.question is not None else directive.after_inform)
            and self._fits(directive, role)
        ]
        return DIRECTIVES[self._unused(fitting)]

    def _commissives(self, last: _Last, role: str) -> Sequence[Phrase]:
        assert last.directive is not None
        self._last.directive = last.directive
        self._last.accepted = self._rng.random() < _ACCEPT_SHARE[self._frame.likes[role]]
        return last.directive.accept if self._last.accepted else last.directive.decline

    def _fits(self, move: Question | Directive, role: str) -> bool:
        return (
            move.speaker in (None, role)
            and move.told in (None, self._frame.told)
            and self._frame.allows(move.needs)
            and bool(self._sayable(move.say, role))
        )

    def _sayable(self, choices: Sequence[Phrase], role: str) -> list[Phrase]:
        return [phrase for phrase in choices if self._frame.can_say(phrase, role)]

    def _unused(self, names: Sequence[str]) -> str:
        """Draw a name, preferably one that was not drawn in this conversation before."""
        name = pick(self._rng, [name for name in names if name not in self._used] or names)
        self._used.add(name)
        return name
