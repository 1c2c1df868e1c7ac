"""Small generated dialogues: vocabulary (`words.yaml`), phrases (`phrases.yaml`), and their course.

The *teller* has done something with a thing; the *listener* hears about it. The act of an utterance depends only on the
previous act, with one likely and one or two less likely continuations. The next act can therefore be predicted better
than by chance, but not with certainty: the most likely act is right in about two of three cases, an act drawn from the
chain in about one of two. Phrases have slots, which `phrases.yaml` explains and a `Frame` fills.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.types import Dialogue, Turn
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data import labels

EMOTION_IDS = {name: number for number, name in labels.EMOTIONS.items()}


@dataclass(frozen=True)
class Topic:
    """The words of one topic."""

    name: str  # name of the topic
    things: tuple[str, ...]  # nouns that a dialogue can be about
    looks: tuple[str, ...]  # adjectives that distinguish things
    good: tuple[str, ...]  # positive adjectives
    bad: tuple[str, ...]  # negative adjectives
    verbs: tuple[tuple[str, str], ...]  # actions with a thing: base form and past tense
    places: tuple[str, ...]  # places of these actions, with preposition
    items: tuple[str, ...]  # items needed for them
    joys: tuple[str, ...]  # good events: verb phrases in the past tense
    woes: tuple[tuple[int, str], ...]  # mishaps, with the emotion that they cause
    can_be_had: bool = True  # whether such a thing can be offered to someone
    can_be_shown: bool = True  # whether it can be photographed
    has_price: bool = False  # whether it can be bought


def _topic(verbs: dict[str, str], woes: dict[str, str], **words: Any) -> Topic:
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in words.items()}
    emotions = tuple((EMOTION_IDS[emotion], woe) for woe, emotion in woes.items())
    return Topic(verbs=tuple(verbs.items()), woes=emotions, **tuples)


_WORDS = packaged_yaml(Path(__file__).with_name("words.yaml"))
TOPICS = tuple(_topic(**topic) for topic in _WORDS["topics"])

NAMES, RELATIVES, WEEKDAYS, TIMES, PRICES, COLOURS = (
    tuple(_WORDS[name]) for name in ("names", "relatives", "weekdays", "times", "prices", "colours")
)
DAYS = ("tomorrow", *(f"on {day}" for day in WEEKDAYS), *(f"next {day}" for day in WEEKDAYS))
PAST_DAYS = ("yesterday", "last week", *(f"last {day}" for day in WEEKDAYS))
FEELINGS = {labels.ANGER: "angry", labels.DISGUST: "disgusted", labels.FEAR: "afraid", labels.SADNESS: "sad"}
IRREGULAR_PLURALS: dict[str, str] = _WORDS["irregular_plurals"]
# Words whose spelling and pronunciation differ in starting with a vowel.
IRREGULAR_ARTICLES: dict[str, str] = _WORDS["irregular_articles"]


TELLER, LISTENER = "teller", "listener"
# Emotion of a phrase whose label depends on the topic's mishap.
WOE = -1
# The kinds of questions that a directive can follow instead of an answer.
ANY_QUESTION, THING_QUESTION = "any question", "question about the thing"

_PHRASE = re.compile(r"(?P<liking>[+-])?\s*(?:\((?P<emotion>\w+)\))?\s*(?P<text>.+)", re.DOTALL)
_SLOT = re.compile(r"{(\w+)}")
_EMOTION_IDS = {**EMOTION_IDS, "woe": WOE}


@dataclass(frozen=True)
class Phrase:
    """A sentence with slots."""

    text: str  # the sentence
    emotion: int = labels.NO_EMOTION  # its label, or ``WOE``
    # whether only a speaker who likes (True) or dislikes (False) the thing says this, otherwise ``None``
    liking: bool | None = None
    slots: frozenset[str] = frozenset()  # names of the slots in ``text``


Phrases = tuple[Phrase, ...]


@dataclass(frozen=True, kw_only=True)
class _Move:
    say: Phrases  # phrases that express it
    speaker: str | None = None  # role of the speaker: ``TELLER``, ``LISTENER``, or ``None`` for both
    told: bool | None = None  # whether the story must have been told before (True) or not (False); ``None`` for either
    needs: str | None = None  # name of a flag of `Frame` that must be set


@dataclass(frozen=True, kw_only=True)
class Question(_Move):
    """A kind of question."""

    answers: Phrases  # informs that answer it
    tells: bool = False  # whether the answer tells the story
    about: str | None = None  # fact that the speaker must not know yet, see `Frame.known`


@dataclass(frozen=True, kw_only=True)
class Directive(_Move):
    """A kind of directive, and its possible continuations."""

    accept: Phrases  # commissives that agree
    decline: Phrases  # commissives that refuse
    objections: Phrases  # informs that answer neither yes nor no
    doubts: tuple[str, ...]  # kinds of questions that answer it
    thanks: Phrases  # informs after ``accept``
    then_ask: tuple[str, ...]  # kinds of questions after ``accept``
    regrets: Phrases  # informs after ``decline``
    regret_ask: tuple[str, ...] = ("helper", "free", "other_time")  # kinds of questions after ``decline``
    after_inform: bool = True  # whether it can follow an inform
    # questions that it can follow instead of an answer: ``ANY_QUESTION``, ``THING_QUESTION``, or ``None`` for none
    after_question: str | None = None


def parse_phrases(text: str) -> Phrases:
    """Parse phrases with their marks, one per line."""
    phrases = []
    for line in text.splitlines():
        match = _PHRASE.fullmatch(line)
        assert match is not None
        liking, slots = match["liking"], frozenset(_SLOT.findall(match["text"]))
        emotion = labels.NO_EMOTION if match["emotion"] is None else _EMOTION_IDS[match["emotion"]]
        phrases.append(Phrase(match["text"], emotion, None if liking is None else liking == "+", slots))
    return tuple(phrases)


def _parsed(move: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the fields of a question or directive: multi-line texts are phrases."""
    phrases = {key: parse_phrases(value) for key, value in move.items() if isinstance(value, str) and "\n" in value}
    tuples = {key: tuple(value) for key, value in move.items() if isinstance(value, list)}
    return {**move, **phrases, **tuples}


_TABLES = packaged_yaml(Path(__file__).with_name("phrases.yaml"))
STATEMENTS = {name: parse_phrases(text) for name, text in _TABLES["statements"].items()}
"""Informs that do not answer a question: the teller's ``story`` and ``more_story``; the listener is ``glad`` or
``sorry`` to hear it, ``curious`` about other news of the thing, and has ``noted`` all other; ``farewells`` end it."""
QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["questions"].items()}
"""Questions that need no occasion, if ``speaker``, ``told`` and ``needs`` allow them."""
COUNTER_QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["counter_questions"].items()}
"""Questions that answer a question."""
THING_COUNTER_QUESTIONS = ("mean", "why_thing")  # counter questions that answer only a question about the thing
FOLLOW_UP_QUESTIONS = {kind: Question(**_parsed(question)) for kind, question in _TABLES["follow_up_questions"].items()}
"""Questions that answer a directive, or follow a commissive."""
DIRECTIVES = {
    kind: Directive(**_parsed({"regrets": _TABLES["regrets"], **directive}))
    for kind, directive in _TABLES["directives"].items()
}


_T = TypeVar("_T")


def pick(rng: random.Random, choices: Sequence[_T]) -> _T:
    """Draw one element, identically in all versions of Python, which do not guarantee the sequence of ``choice``."""
    return choices[int(rng.random() * len(choices))]


def plural(noun: str) -> str:
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(phrase: str) -> str:
    """Prepend ``a`` or ``an`` to a noun phrase."""
    first = phrase.split(" ", 1)[0]
    article = IRREGULAR_ARTICLES.get(first) or ("an" if first[0] in "aeiou" else "a")
    return f"{article} {phrase}"


class Frame:
    """The facts of one dialogue.

    The listener's knowledge of the story: the slots ``place``, ``when``, ``my_kin``, and ``event`` for joy or woe.
    """

    def __init__(self, rng: random.Random, topic: Topic) -> None:
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
        when, wrong_when = self._two_of(PAST_DAYS)
        kin = self._two_of(RELATIVES)
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
            "feeling": FEELINGS[self._woe_emotion],
            "price": pick(rng, PRICES),
        }
        self._choices = {"name": NAMES, "day": DAYS, "time": TIMES, "item": topic.items, "colour": COLOURS}
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
        """Fill the slots of a phrase, from left to right; returns the utterance, and the number of its emotion."""
        if self.told and role == TELLER:
            self.known |= phrase.slots & {"place", "when", "my_kin"}
            if phrase.slots & {"joy", "woe"}:
                self.known.add("event")
        text = _SLOT.sub(lambda match: self.slot(match[1], role), phrase.text)
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
        match name:
            case "it" if not self.told:
                return self._fixed["one"]
            case "it":
                return f"the {self._look} {self._thing}" if self._rng.random() < 0.7 else f"the {self._thing}"
            case "many":
                return self._fixed["these" if self._rng.random() < 0.8 else "things"]
            case "my_kin":
                return f"my {self._kin[role]}"
            case "your_kin":
                return f"your {self._kin[LISTENER if role == TELLER else TELLER]}"
            case "day_name":
                return self._current["day"].removeprefix("on ")
            case "weekday":
                return pick(self._rng, WEEKDAYS)
            case "past_day":
                return pick(self._rng, PAST_DAYS)
        raise KeyError(name)

    def _two_of(self, choices: Sequence[_T]) -> tuple[_T, _T]:
        first = pick(self._rng, choices)
        return first, pick(self._rng, [choice for choice in choices if choice != first])


MIN_TURNS, MAX_TURNS = 4, 12

FIRST_ACT = {labels.INFORM: 0.5, labels.QUESTION: 0.4, labels.DIRECTIVE: 0.1}
NEXT_ACT = {
    labels.INFORM: {labels.QUESTION: 0.66, labels.DIRECTIVE: 0.18, labels.INFORM: 0.16},
    labels.QUESTION: {labels.INFORM: 0.68, labels.QUESTION: 0.19, labels.DIRECTIVE: 0.13},
    labels.DIRECTIVE: {labels.COMMISSIVE: 0.68, labels.QUESTION: 0.2, labels.INFORM: 0.12},
    labels.COMMISSIVE: {labels.INFORM: 0.66, labels.QUESTION: 0.34},
}
# Acts that can end a dialogue.
_LAST_ACTS = (labels.INFORM, labels.COMMISSIVE)
_ACCEPT_SHARE = {True: 0.85, False: 0.5}

_ALL_QUESTIONS = {**QUESTIONS, **COUNTER_QUESTIONS, **FOLLOW_UP_QUESTIONS}
_THING_SLOTS = {"it", "one", "many", "thing", "things"}


def generate_dialogue(id: str, seed: str) -> Dialogue:
    """Generate 4 to 12 turns of two alternating speakers, each labeled with act and emotion."""
    rng = random.Random(seed)
    topic = pick(rng, TOPICS)
    acts = draw_acts(rng)
    conversation = _Conversation(rng, Frame(rng, topic))
    # Only the teller can start with an inform.
    teller_begins = acts[0] == labels.INFORM or rng.random() < 0.5
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
    emotion: int = labels.NO_EMOTION
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
        if act == labels.INFORM:
            choices = self._informs(last, role, is_last)
        elif act == labels.QUESTION:
            self._last.question = self._choose_question(last, role)
            choices = self._last.question.say
        elif act == labels.DIRECTIVE:
            self._last.directive = self._choose_directive(last, role)
            choices = self._last.directive.say
        else:
            assert last.directive is not None
            self._last.directive = last.directive
            self._last.accepted = self._rng.random() < _ACCEPT_SHARE[self._frame.likes[role]]
            choices = last.directive.accept if self._last.accepted else last.directive.decline
        sayable = {phrase.text: phrase for phrase in choices if self._frame.can_say(phrase, role)}
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
            if last.act == labels.DIRECTIVE:
                return last.directive.objections
            return last.directive.thanks if last.accepted else last.directive.regrets
        if is_last and self._frame.told:
            return STATEMENTS["farewells"]
        if role == TELLER and not self._frame.told:
            self._frame.told = True
            return STATEMENTS["story"]
        if role == TELLER:
            return STATEMENTS["more_story"]
        if last.emotion == labels.HAPPINESS:
            return STATEMENTS["glad"]
        if last.emotion not in (labels.NO_EMOTION, labels.SURPRISE):
            return STATEMENTS["sorry"]
        return STATEMENTS["curious"] if last.about_thing else STATEMENTS["noted"]

    def _choose_question(self, last: _Last, role: str) -> Question:
        kinds: Iterable[str] = QUESTIONS
        if last.question is not None:
            kinds = COUNTER_QUESTIONS if last.about_thing else COUNTER_QUESTIONS.keys() - THING_COUNTER_QUESTIONS
        elif last.directive is not None and last.act == labels.DIRECTIVE:
            kinds = last.directive.doubts
        elif last.directive is not None:
            kinds = last.directive.then_ask if last.accepted else last.directive.regret_ask
        asked = {kind: question for kind, question in _ALL_QUESTIONS.items() if kind in kinds}
        known = self._frame.known
        fitting = [kind for kind, each in asked.items() if each.about not in known and self._fits(each, role)]
        return _ALL_QUESTIONS[self._unused(fitting)]

    def _choose_directive(self, last: _Last, role: str) -> Directive:
        if last.act is None:
            return DIRECTIVES["join"]
        places = (ANY_QUESTION, THING_QUESTION) if last.about_thing else (ANY_QUESTION,)
        fitting = [
            kind
            for kind, each in DIRECTIVES.items()
            if (each.after_question in places if last.question is not None else each.after_inform)
            and self._fits(each, role)
        ]
        return DIRECTIVES[self._unused(fitting)]

    def _fits(self, move: _Move, role: str) -> bool:
        return (
            move.speaker in (None, role)
            and move.told in (None, self._frame.told)
            and self._frame.allows(move.needs)
            and any(self._frame.can_say(phrase, role) for phrase in move.say)
        )

    def _unused(self, names: Sequence[str]) -> str:
        """Draw a name, preferably one that was not drawn in this conversation before."""
        name = pick(self._rng, [name for name in names if name not in self._used] or names)
        self._used.add(name)
        return name
