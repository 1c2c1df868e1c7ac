"""Goals of turns: built-in sets, those of a config, and which goal a reply has."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.tasks.get_acquainted.topics import REACTIONS, SMALL_TALK, TOPICS
from rl4dialog.tasks.turn_goals.convogym import CONVOGYM
from rl4dialog.text.content_words import content_words

GoalChoice = str | list[str | dict[str, Any]]
"""The id of a set, or a list with names of goals from the sets and mappings for others."""
_KEYS = ("name", "questions", "words")


@dataclass(frozen=True)
class TurnGoal:
    """What a speaker wants with a turn.

    Attributes:
        name: The goal as a language model reads it.
        questions: What the scripted speaker says, one of them at random.
        words: Words that show the goal in a reply; empty for a goal without a topic.
    """

    name: str
    questions: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @functools.cached_property
    def content(self) -> frozenset[str]:
        """The words as `content_words` reads them."""
        return frozenset(content_words(" ".join(self.words)))


GOAL_SETS: Mapping[str, tuple[TurnGoal, ...]] = {
    "get_acquainted": tuple(TurnGoal(topic.name, topic.questions, (topic.name,)) for topic in TOPICS),
    "convogym": tuple(TurnGoal(name, said, tuple(words.split())) for name, (said, words) in CONVOGYM.items()),
}
"""Built-in sets by id."""
SMALL_TALK_GOAL = TurnGoal(SMALL_TALK, REACTIONS)
_KNOWN = {goal.name: goal for goal in (*(goal for goals in GOAL_SETS.values() for goal in goals), SMALL_TALK_GOAL)}


def chosen_goals(chosen: GoalChoice, where: str) -> tuple[TurnGoal, ...]:
    """Return the goals that a config names.

    Args:
        chosen: The id of a set, or a list. Its items are names of goals from the sets, or mappings with a ``name`` and,
            as lists of texts, ``questions`` and ``words``.
        where: Path of ``chosen`` in the config, for messages.
    """
    if isinstance(chosen, str):
        if chosen not in GOAL_SETS:
            known = ", ".join(GOAL_SETS)
            raise ConfigError(f"{where}: unknown set of goals {chosen!r}{nearest_hint(chosen, GOAL_SETS)}; use {known}")
        return GOAL_SETS[chosen]
    goals = tuple(_goal(item, f"{where}[{i}]") for i, item in enumerate(chosen))
    if not goals:
        raise ConfigError(f"{where} is empty; an agent without goals has nothing to choose from")
    names = [goal.name for goal in goals]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(f"{where}: the goal {twice[0]!r} is named twice")
    return goals


def _goal(item: Any, where: str) -> TurnGoal:
    if isinstance(item, str):
        if item not in _KNOWN:
            raise ConfigError(
                f"{where}: unknown goal {item!r}{nearest_hint(item, _KNOWN)} (known: {', '.join(map(repr, _KNOWN))}); "
                f"for a new one, write {{name: ..., questions: [...], words: [...]}}"
            )
        return _KNOWN[item]
    lists = [item.get(key, []) for key in _KEYS[1:]]
    if not (set(item) <= set(_KEYS) and isinstance(item.get("name"), str) and item["name"].strip()):
        raise ConfigError(f"{where} must have a name, and can have {' and '.join(_KEYS[1:])}; it is {shown(item)}")
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists):
        raise ConfigError(f"{where}: questions and words must be lists of texts; it is {shown(item)}")
    return TurnGoal(item["name"], *map(tuple, lists))


def said_goal(text: str, goals: Sequence[TurnGoal]) -> TurnGoal | None:
    """Find the goal of a reply: the one with most words in its last question or, without one, its last sentence.

    Of goals with equally many, the first one counts.

    Returns:
        The goal; ``None`` if no word of a goal is in it.
    """
    sentences = [sentence for sentence in re.findall(r"[^.?!]+[.?!]*", text) if sentence.strip()]
    words = content_words(next((each for each in reversed(sentences) if "?" in each), "".join(sentences[-1:])))
    found = max(goals, key=lambda goal: len(goal.content & words), default=None)
    return found if found is not None and found.content & words else None


def follows(text: str, goal: TurnGoal, goals: Sequence[TurnGoal]) -> bool:
    """Whether a reply has this goal. A goal without words is followed by a reply without those of any other goal."""
    found = said_goal(text, goals)
    return found is None if not goal.content else found == goal
