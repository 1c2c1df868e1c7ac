"""The facts of one dialogue, and the words that they provide for the slots of a phrase.

====================================== ===========================================================================
slot                                   content
====================================== ===========================================================================
``it`` / ``one`` / ``many``            the thing: "the red hat", "a red hat", "red hats"
``these``                              "red hats", where ``many`` is sometimes just "hats"
``thing`` / ``things``                 its noun
``other`` / ``others``                 another thing of the topic: "a long coat", "long coats"
``alts``                               the thing with another look: "long hats"
``do`` / ``did``                       what the teller did with it
``place`` / ``when``                   place and time of that
``wrong_place`` / ``wrong_when``       another place, another day
``my_kin`` / ``your_kin``              a relative of the speaker, of the other side
``good`` / ``bad`` / ``joy`` / ``woe`` judgements of the thing, and its effects; ``feeling`` goes with ``woe``
``price``                              a number of dollars
``name day time item colour``          the last one mentioned; with ``new_`` it is replaced by another one
``day_name`` / ``weekday``             the day without its preposition; any weekday
``past_day``                           any day in the past
====================================== ===========================================================================
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from rl4dialog.data.small_talk import words
from rl4dialog.data.small_talk.phrases import LISTENER, TELLER, WOE, Phrase

_T = TypeVar("_T")


def pick(rng: random.Random, choices: Sequence[_T]) -> _T:
    """Draw one element, identically in all versions of Python.

    Python guarantees the sequence of `random.Random.random`, but not that of ``choice``.
    """
    return choices[int(rng.random() * len(choices))]


def plural(noun: str) -> str:
    """Return the plural of a countable noun."""
    if noun in words.IRREGULAR_PLURALS:
        return words.IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(phrase: str) -> str:
    """Prepend ``a`` or ``an`` to a noun phrase."""
    first = phrase.split(" ", 1)[0]
    article = words.IRREGULAR_ARTICLES.get(first) or ("an" if first[0] in "aeiou" else "a")
    return f"{article} {phrase}"


class Frame:
    """The facts of one dialogue.

    Args:
        rng: Random generator for all choices.

    Attributes:
        topic: Topic of the dialogue.
        told: Whether the listener has heard the teller's story.
        likes: For each role, whether it likes the thing.
        known: The listener's knowledge of the story: the slots ``place``, ``when`` and ``my_kin``, and ``event`` for
            ``joy`` or ``woe``.
    """

    def __init__(self, rng: random.Random, topic: words.Topic) -> None:
        self.topic = topic
        self.told = False
        self.known: set[str] = set()
        self.likes = {role: rng.random() < 0.6 for role in (TELLER, LISTENER)}
        self._rng = rng
        self._thing, other_thing = self._two_of(topic.things)
        self._look, other_look = self._two_of(topic.looks)
        self._woe_emotion, woe = pick(rng, topic.woes)
        base, past = pick(rng, topic.verbs)
        place, wrong_place = self._two_of(topic.places)
        when, wrong_when = self._two_of(words.PAST_DAYS)
        kin = self._two_of(words.RELATIVES)
        self._kin = dict(zip((TELLER, LISTENER), kin, strict=True))
        self._fixed = {
            "thing": self._thing,
            "things": plural(self._thing),
            "one": with_article(f"{self._look} {self._thing}"),
            "other": with_article(f"{other_look} {other_thing}"),
            "others": f"{other_look} {plural(other_thing)}",
            "these": f"{self._look} {plural(self._thing)}",
            "alts": f"{other_look} {plural(self._thing)}",
            "do": base,
            "did": past,
            "place": place,
            "wrong_place": wrong_place,
            "when": when,
            "wrong_when": wrong_when,
            "good": pick(rng, topic.good),
            "bad": pick(rng, topic.bad),
            "joy": pick(rng, topic.joys),
            "woe": woe,
            "feeling": words.FEELINGS[self._woe_emotion],
            "price": pick(rng, words.PRICES),
        }
        self._choices = {
            "name": words.NAMES,
            "day": words.DAYS,
            "time": words.TIMES,
            "item": topic.items,
            "colour": words.COLOURS,
        }
        self._current = {slot: pick(rng, choices) for slot, choices in self._choices.items()}

    def allows(self, needs: str | None) -> bool:
        """Whether the flag required by a question or directive is set; ``None`` requires nothing."""
        if needs is None:
            return True
        if needs == "bad_news":
            return "event" in self.known and not self.likes[TELLER]
        return bool(getattr(self.topic, needs))

    def can_say(self, phrase: Phrase, role: str) -> bool:
        """Whether a phrase fits a role's preferences and knowledge."""
        if phrase.liking not in (None, self.likes[role]):
            return False
        if role == TELLER or not self.told:
            return True
        known = {"your_kin" if slot == "my_kin" else slot for slot in self.known}
        return phrase.slots & {"place", "when", "your_kin"} <= known

    def say(self, phrase: Phrase, role: str) -> tuple[str, int]:
        """Fill the slots of a phrase.

        Args:
            phrase: The phrase.
            role: The speaker's role.

        Returns:
            The utterance, and the number of its emotion.
        """
        if self.told and role == TELLER:
            self.known |= phrase.slots & {"place", "when", "my_kin"}
            if phrase.slots & {"joy", "woe"}:
                self.known.add("event")
        text = phrase.text.format_map(_Slots(self, role))
        return text, self._woe_emotion if phrase.emotion == WOE else phrase.emotion

    def slot(self, name: str, role: str) -> str:
        """Return the words for a slot in an utterance of a role."""
        if name in self._fixed:
            return self._fixed[name]
        if name.startswith("new_"):
            name = name.removeprefix("new_")
            others = [choice for choice in self._choices[name] if choice != self._current[name]]
            self._current[name] = pick(self._rng, others)
        if name in self._current:
            return self._current[name]
        if name == "it":
            if not self.told:
                return self._fixed["one"]
            return f"the {self._look} {self._thing}" if self._rng.random() < 0.7 else f"the {self._thing}"
        if name == "many":
            things = self._fixed["things"]
            return f"{self._look} {things}" if self._rng.random() < 0.8 else things
        if name in ("my_kin", "your_kin"):
            mine = name == "my_kin"
            owner = role if mine else {TELLER: LISTENER, LISTENER: TELLER}[role]
            return f"{'my' if mine else 'your'} {self._kin[owner]}"
        if name == "day_name":
            return self._current["day"].removeprefix("on ")
        if name == "weekday":
            return pick(self._rng, words.WEEKDAYS)
        if name == "past_day":
            return pick(self._rng, words.PAST_DAYS)
        raise KeyError(name)

    def _two_of(self, choices: Sequence[_T]) -> tuple[_T, _T]:
        first = pick(self._rng, choices)
        return first, pick(self._rng, [choice for choice in choices if choice != first])


class _Slots(dict[str, str]):
    """Fills slots of a phrase on access, from left to right."""

    def __init__(self, frame: Frame, role: str) -> None:
        super().__init__()
        self._frame = frame
        self._role = role

    def __missing__(self, name: str) -> str:
        return self._frame.slot(name, self._role)
