"""Who speaks for an agent that chooses goals: the interface, and a scripted speaker."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.turn_goals.goals import TurnGoal


class GoalTurn(NamedTuple):
    """A turn that is to be spoken.

    Attributes:
        goal: Its goal.
        history: All utterances so far; the last one is the partner's.
        meta_info: The sample's ``meta_data``.
        seed: Seed of the turn.
    """

    goal: TurnGoal
    history: list[str]
    meta_info: dict[str, Any]
    seed: int


class Speaker(ABC):
    """Puts goals into words, for many conversations at once. It is not trained."""

    def check(self, goals: Sequence[TurnGoal]) -> None:  # noqa: B027 (a language model reads any name)
        """Check that it can speak to reach these goals.

        Raises:
            ConfigError: If not.
        """

    @abstractmethod
    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        """Return one utterance for each turn."""


class ScriptedSpeaker(Speaker):
    """Says one of the goal's questions, at random."""

    def check(self, goals: Sequence[TurnGoal]) -> None:
        for goal in goals:
            if not goal.questions:
                raise ConfigError(
                    f"speaker 'scripted' says the questions of a goal, and {goal.name!r} has none; add questions: "
                    f"[...] to it in env.args.goals"
                )

    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        return [random.Random(turn.seed).choice(turn.goal.questions) for turn in turns]
