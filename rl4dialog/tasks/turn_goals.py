"""Goals of single turns, such as asking about pets, and which goal a reply has."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.text.words import content_words


@dataclass(frozen=True)
class Topic:
    """A topic."""

    name: str  # a word that occurs in all its facts and questions
    facts: tuple[str, ...]  # one sentence for each value; a person has at most one of them
    questions: tuple[str, ...]  # ways to ask for the fact


TOPICS = tuple(
    Topic(name, tuple(topic["fact"].format(value) for value in topic["values"]), tuple(topic["questions"]))
    for name, topic in packaged_yaml(Path(__file__).with_name("topics.yaml")).items()
)


SMALL_TALK = "small_talk"  # goal of utterances without a topic


REACTIONS = ("that sounds nice .", "oh , i see .", "good to know .", "how interesting .")


class GoalBlock(TypedDict):
    """A goal of the user's own in YAML, with the fields of `TurnGoal`."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[misc]
    name: Annotated[str, Field(pattern=r"\S")]
    questions: NotRequired[list[str]]
    words: NotRequired[list[str]]


GoalChoice = str | Annotated[list[str | GoalBlock], Field(min_length=1)]
"""The id of a set, or a list with names of goals from the sets and blocks of others."""


@dataclass(frozen=True)
class TurnGoal:
    """What a speaker wants with a turn."""

    name: str  # the goal as a language model reads it
    questions: tuple[str, ...] = ()  # what the scripted speaker says, one of them at random
    words: tuple[str, ...] = ()  # words that show the goal in a reply; empty for a goal without a topic

    @functools.cached_property
    def content(self) -> frozenset[str]:
        """The words as `content_words` reads them."""
        return frozenset(content_words(" ".join(self.words)))


GOAL_SETS: Mapping[str, tuple[TurnGoal, ...]] = {
    "get_acquainted": tuple(TurnGoal(topic.name, topic.questions, (topic.name,)) for topic in TOPICS),
    "convogym": tuple(
        TurnGoal(name, tuple(goal["questions"]), tuple(goal["words"].split()))
        for name, goal in packaged_yaml(Path(__file__).with_suffix(".yaml")).items()
    ),
}
SMALL_TALK_GOAL = TurnGoal(SMALL_TALK, REACTIONS)
_KNOWN = {goal.name: goal for goal in (*(goal for goals in GOAL_SETS.values() for goal in goals), SMALL_TALK_GOAL)}


def chosen_goals(chosen: GoalChoice, where: str) -> tuple[TurnGoal, ...]:
    """Return the goals that a config names."""
    if isinstance(chosen, str):
        if chosen not in GOAL_SETS:
            hint = f"{nearest_hint(chosen, GOAL_SETS)}; use {', '.join(GOAL_SETS)}"
            raise ConfigError(f"{where}: unknown set of goals {chosen!r}{hint}")
        return GOAL_SETS[chosen]
    goals = tuple(_goal(item, f"{where}[{i}]") for i, item in enumerate(chosen))
    names = [goal.name for goal in goals]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(f"{where}: the goal {twice[0]!r} is named twice")
    return goals


def _goal(item: str | GoalBlock, where: str) -> TurnGoal:
    if not isinstance(item, str):
        return TurnGoal(item["name"], tuple(item.get("questions", ())), tuple(item.get("words", ())))
    if item not in _KNOWN:
        hint = f"{nearest_hint(item, _KNOWN)} (known: {', '.join(map(repr, _KNOWN))})"
        new = "for a new one, write {name: ..., questions: [...], words: [...]}"
        raise ConfigError(f"{where}: unknown goal {item!r}{hint}; {new}")
    return _KNOWN[item]


def said_goal(text: str, goals: Sequence[TurnGoal]) -> TurnGoal | None:
    """Find the goal of a reply: the one with most words in its last question or, without one, its last sentence.

    Of goals with equally many, the first one counts.
    """
    sentences = [sentence for sentence in re.findall(r"[^.?!]+[.?!]*", text) if sentence.strip()]
    words = content_words(next((each for each in reversed(sentences) if "?" in each), "".join(sentences[-1:])))
    found = max(goals, key=lambda goal: len(goal.content & words), default=None)
    return found if found is not None and found.content & words else None


def follows(text: str, goal: TurnGoal, goals: Sequence[TurnGoal]) -> bool:
    """Whether a reply has this goal. A goal without words is followed by a reply without those of any other goal."""
    found = said_goal(text, goals)
    return found is None if not goal.content else found == goal
