"""The phrases of the small dialogues, read from `phrases.yaml`.

The *teller* has done something with a thing; the *listener* hears about it. `frame` explains the slots of phrases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.data.labels import NO_EMOTION
from rl4dialog.data.small_talk.words import EMOTION_IDS, packaged_yaml

TELLER, LISTENER = "teller", "listener"
# Emotion of a phrase whose label depends on the topic's mishap.
WOE = -1
# The kinds of questions that a directive can follow instead of an answer.
ANY_QUESTION, THING_QUESTION = "any question", "question about the thing"

_PHRASE = re.compile(r"(?P<liking>[+-])?\s*(?:\((?P<emotion>\w+)\))?\s*(?P<text>.+)", re.DOTALL)
_EMOTION_IDS = {**EMOTION_IDS, "woe": WOE}


@dataclass(frozen=True)
class Phrase:
    """A sentence with slots.

    Attributes:
        text: The sentence.
        emotion: Its label, or ``WOE``.
        liking: Whether only a speaker who likes (True) or dislikes (False) the thing says this, otherwise ``None``.
        slots: Names of the slots in ``text``.
    """

    text: str
    emotion: int = NO_EMOTION
    liking: bool | None = None
    slots: frozenset[str] = frozenset()


Phrases = tuple[Phrase, ...]


@dataclass(frozen=True)
class Question:
    """A kind of question.

    Attributes:
        say: Phrases that ask the question.
        answers: Informs that answer it.
        speaker: Role of the speaker: ``TELLER``, ``LISTENER``, or ``None`` for both.
        told: Whether the story must have been told before (True) or not (False); ``None`` for either.
        tells: Whether the answer tells the story.
        needs: Name of a flag of `Frame` that must be set.
        about: Fact that the speaker must not know yet, see `Frame.known`.
    """

    say: Phrases
    answers: Phrases
    speaker: str | None = None
    told: bool | None = None
    tells: bool = False
    needs: str | None = None
    about: str | None = None


@dataclass(frozen=True)
class Directive:
    """A kind of directive, and its possible continuations.

    Attributes:
        say: Phrases that express it.
        accept: Commissives that agree.
        decline: Commissives that refuse.
        objections: Informs that answer neither yes nor no.
        doubts: Kinds of questions that answer it.
        thanks: Informs after ``accept``.
        then_ask: Kinds of questions after ``accept``.
        regrets: Informs after ``decline``.
        regret_ask: Kinds of questions after ``decline``.
        speaker: See `Question`.
        told: See `Question`.
        needs: See `Question`.
        after_inform: Whether it can follow an inform.
        after_question: Questions that it can follow instead of an answer: ``ANY_QUESTION``, ``THING_QUESTION`` for
            questions about the thing, ``None`` for none.
    """

    say: Phrases
    accept: Phrases
    decline: Phrases
    objections: Phrases
    doubts: tuple[str, ...]
    thanks: Phrases
    then_ask: tuple[str, ...]
    regrets: Phrases
    regret_ask: tuple[str, ...] = ("helper", "free", "other_time")
    speaker: str | None = None
    told: bool | None = None
    needs: str | None = None
    after_inform: bool = True
    after_question: str | None = None


def parse_phrases(text: str) -> Phrases:
    """Parse phrases with their marks, one per line."""
    phrases = []
    for line in text.splitlines():
        match = _PHRASE.fullmatch(line)
        assert match is not None
        emotion, liking = match["emotion"], match["liking"]
        number = _EMOTION_IDS[emotion] if emotion else NO_EMOTION
        slots = frozenset(re.findall(r"{(\w+)}", match["text"]))
        phrases.append(Phrase(match["text"], number, None if liking is None else liking == "+", slots))
    return tuple(phrases)


def _parsed(move: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the fields of a question or directive: multi-line texts are phrases."""

    def value(given: Any) -> Any:
        if isinstance(given, str) and given.endswith("\n"):
            return parse_phrases(given)
        return tuple(given) if isinstance(given, list) else given

    return {key: value(given) for key, given in move.items()}


_TABLES = packaged_yaml("phrases.yaml")
STATEMENTS = {name: parse_phrases(text) for name, text in _TABLES["statements"].items()}
"""Informs that do not answer a question: the teller's ``story`` and ``more_story``; the listener is ``glad`` or
``sorry`` to hear it, ``curious`` about other news of the thing, and has ``noted`` all other news; ``farewells`` end a
dialogue."""
QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["questions"].items()}
"""Questions that need no occasion, if ``speaker``, ``told`` and ``needs`` allow them."""
COUNTER_QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["counter_questions"].items()}
"""Questions that answer a question."""
THING_COUNTER_QUESTIONS = ("mean", "why_thing")
"""Counter questions that answer only a question about the thing."""
FOLLOW_UP_QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["follow_up_questions"].items()}
"""Questions that answer a directive, or follow a commissive."""
DIRECTIVES = {
    kind: Directive(**_parsed({"regrets": _TABLES["regrets"], **directive}))
    for kind, directive in _TABLES["directives"].items()
}
