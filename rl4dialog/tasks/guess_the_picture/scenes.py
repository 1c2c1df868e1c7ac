"""The scenes of the game: attributes and their values, views, and seeded tables of scenes."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import is_whole_number
from rl4dialog.data.rows import packaged_yaml
from rl4dialog.tasks import playing


@dataclass(frozen=True)
class Attribute:
    """A property that all scenes have."""

    name: str
    values: tuple[str, ...]  # possible values, as they are said
    group: frozenset[str]  # the values for which the answer to ``group_question`` is yes
    open_question: str  # question for the value, without its question mark; likewise below
    group_question: str  # yes/no question for the group
    asks: str = "is it"  # begin of yes/no questions for one value
    states: str = "it is"  # begin of whole sentences with the value


def _attribute(name: str, others: list[str], group: list[str], **words: str) -> Attribute:
    return Attribute(name, (*others, *group), frozenset(group), **words)


_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
ATTRIBUTES = {name: _attribute(name, **attribute) for name, attribute in _TABLE["attributes"].items()}
VIEWS = {view: frozenset(names) for view, names in _TABLE["views"].items()}
"""By view, which is also the caption of a picture, the attributes that are hard to see in it."""

N_IMPRESSIONS = 4


@dataclass(frozen=True)
class Scene:
    """A scene, as a picture of it."""

    view: str  # the view, a key of ``VIEWS``
    values: Mapping[str, str]  # value of each attribute, by its name
    impression: int  # points from 0 to 3 that the guesser gives to the scene before anything is said

    @property
    def hard_to_see(self) -> frozenset[str]:
        """Names of the attributes that are hard to see in the picture."""
        return VIEWS[self.view]


@functools.lru_cache(maxsize=8)
def scene_table(n_scenes: int, seed: int) -> tuple[Scene, ...]:
    """Draw the scenes of a table: views and values at random, and the impressions 0, 1, 2, 3 in turn."""
    rng, scenes = random.Random(derive_seed(seed, "scenes")), []
    for index in range(n_scenes):
        view = rng.choice(list(VIEWS))
        values = {name: rng.choice(attribute.values) for name, attribute in ATTRIBUTES.items()}
        scenes.append(Scene(view, values, index % N_IMPRESSIONS))
    return tuple(scenes)


def table_of(meta_info: Mapping[str, Any]) -> tuple[Scene, ...] | None:
    """Return the table that the meta data of a sample names; ``None`` if it names none, or not its hidden scene."""
    table, hidden = meta_info.get("table"), meta_info.get("scene")
    if not (isinstance(table, Mapping) and is_whole_number(hidden, at_least=0)):
        return None
    n_scenes, seed = table.get("n_scenes"), table.get("seed")
    if not (is_whole_number(n_scenes, at_least=hidden + 1) and isinstance(seed, int)):
        return None
    return scene_table(n_scenes, seed)


YES, NO = "yes", "no"
PROBABLY, PROBABLY_NOT = "i think so", "i do not think so"
NOT_SEEN, NOT_UNDERSTOOD = "i can not tell", "i do not understand"


@dataclass(frozen=True)
class Question(playing.Question):
    """A question of the agent."""

    attribute: str  # name of the attribute
    values: frozenset[str] | None = None  # the values for which the answer is yes; ``None`` for an open question
    # whether it asks for a group of values, which can be answered if the attribute is hard to see
    is_broad: bool = False

    def is_answered(self, hard_to_see: frozenset[str]) -> bool:
        """Whether the answer says anything, if these attributes are hard to see."""
        return self.is_broad or self.attribute not in hard_to_see


OPEN_QUESTIONS = tuple(Question(attribute.open_question, name) for name, attribute in ATTRIBUTES.items())
YES_NO_QUESTIONS = tuple(
    question
    for name, attribute in ATTRIBUTES.items()
    for question in (
        Question(attribute.group_question, name, attribute.group, is_broad=True),
        *(Question(f"{attribute.asks} {value}", name, frozenset({value})) for value in attribute.values),
    )
)
"""For each attribute, one question for its group of values and one for each value."""
QUESTIONS = (*OPEN_QUESTIONS, *YES_NO_QUESTIONS)
parse = playing.reader_of(QUESTIONS)


def answer(question: Question, scene: Scene, in_sentences: bool) -> str:
    """Answer a question about a scene."""
    attribute, value = ATTRIBUTES[question.attribute], scene.values[question.attribute]
    if not question.is_answered(scene.hard_to_see):
        return NOT_SEEN
    if question.values is None:
        return f"{attribute.states} {value}" if in_sentences else value
    brief, sure = (YES, NO), (f"{YES} , {attribute.states}", f"{NO} , {attribute.states} not")
    said = sure if in_sentences else brief
    if question.attribute in scene.hard_to_see:
        said = PROBABLY, PROBABLY_NOT
    return said[value not in question.values]


def values_left(question: Question, answer: str) -> frozenset[str] | None:
    """Return the values of the question's attribute that an answer leaves possible; ``None`` if it says nothing."""
    attribute = ATTRIBUTES[question.attribute]
    if question.values is None:
        said = answer.removeprefix(f"{attribute.states} ")
        return frozenset({said}) if said in attribute.values else None
    if answer in (YES, PROBABLY, f"{YES} , {attribute.states}"):
        return question.values
    if answer in (NO, PROBABLY_NOT, f"{NO} , {attribute.states} not"):
        return frozenset(attribute.values) - question.values
    return None
