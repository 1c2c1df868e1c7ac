"""The vocabulary of the small dialogues, read from `words.yaml`: words of each topic, and words shared by all."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from rl4dialog.data.labels import ANGER, DISGUST, EMOTIONS, FEAR, SADNESS

EMOTION_IDS = {name: number for number, name in EMOTIONS.items()}


@dataclass(frozen=True)
class Topic:
    """The words of one topic.

    Attributes:
        name: Name of the topic.
        things: Nouns that a dialogue can be about.
        looks: Adjectives that distinguish things.
        good: Positive adjectives.
        bad: Negative adjectives.
        verbs: Actions with a thing: base form and past tense.
        places: Places of these actions, with preposition.
        items: Items needed for them.
        joys: Good events: verb phrases in the past tense.
        woes: Mishaps, with the emotion that they cause.
        can_be_had: Whether such a thing can be offered to someone.
        can_be_shown: Whether it can be photographed.
        has_price: Whether it can be bought.
    """

    name: str
    things: tuple[str, ...]
    looks: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    verbs: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    items: tuple[str, ...]
    joys: tuple[str, ...]
    woes: tuple[tuple[int, str], ...]
    can_be_had: bool = True
    can_be_shown: bool = True
    has_price: bool = False


def packaged_yaml(name: str) -> dict[str, Any]:
    """Load a table from a file next to this module."""
    text = (resources.files("rl4dialog.data.small_talk") / name).read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tables


def _topic(verbs: dict[str, str], woes: dict[str, str], **words: Any) -> Topic:
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in words.items()}
    emotions = tuple((EMOTION_IDS[emotion], woe) for woe, emotion in woes.items())
    return Topic(verbs=tuple(verbs.items()), woes=emotions, **tuples)


_TABLES = packaged_yaml("words.yaml")
TOPICS = tuple(_topic(**topic) for topic in _TABLES["topics"])

NAMES, RELATIVES, WEEKDAYS, TIMES, PRICES, COLOURS = (
    tuple(_TABLES[name]) for name in ("names", "relatives", "weekdays", "times", "prices", "colours")
)
DAYS = ("tomorrow", *(f"on {day}" for day in WEEKDAYS), *(f"next {day}" for day in WEEKDAYS))
PAST_DAYS = ("yesterday", "last week", *(f"last {day}" for day in WEEKDAYS))
FEELINGS = {ANGER: "angry", DISGUST: "disgusted", FEAR: "afraid", SADNESS: "sad"}
IRREGULAR_PLURALS: dict[str, str] = _TABLES["irregular_plurals"]
# Words whose spelling and pronunciation differ in starting with a vowel.
IRREGULAR_ARTICLES: dict[str, str] = _TABLES["irregular_articles"]
