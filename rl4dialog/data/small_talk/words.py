"""What the little dialogues are about, read from `words.yaml`: the words of each topic, and those that all share."""

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
        name: Of the topic.
        things: Nouns that a dialogue can be about.
        looks: Adjectives that tell one thing from another.
        good: Adjectives of praise.
        bad: Adjectives of blame.
        verbs: What people do with a thing: base form and past tense.
        places: Where they do it, with preposition.
        items: What they need for it.
        joys: What a thing did well: a verb phrase in the past tense.
        woes: What went wrong, with the emotion that it causes.
        can_be_had: True when one can offer somebody such a thing.
        can_be_shown: True when one can take a photo of it.
        has_price: True when such a thing is bought.
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
    """A table that lies beside this module."""
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
# Written with a vowel, spoken with a consonant, or the other way round.
IRREGULAR_ARTICLES: dict[str, str] = _TABLES["irregular_articles"]
