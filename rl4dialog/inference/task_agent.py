"""An agent for a task that people talk to in words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl4dialog.tasks.dialogue_acts.acts import BYE, GENERAL, DialogueAct
from rl4dialog.tasks.dialogue_acts.goals import Goal, goal_text
from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome, outcome_of
from rl4dialog.tasks.dialogue_acts.world import World

_NO_GOAL = Goal("", {})


@dataclass(frozen=True)
class TaskReply:
    """A turn of the agent.

    Attributes:
        understood: Acts in what the person said; empty if nothing was understood, and then the agent says nothing.
        acts: Acts of the agent.
        text: The same in words; empty if the agent says nothing.
    """

    understood: list[DialogueAct]
    acts: tuple[DialogueAct, ...]
    text: str


class TaskAgent(ABC):
    """An agent in a conversation with a person, about a goal or without one.

    Args:
        name: Name for display.
        world: The world.
        seed: Seed of the goals.
    """

    def __init__(self, name: str, world: World, seed: int | None = None) -> None:
        self.name, self.world = name, world
        self._rng = np.random.default_rng(seed)
        self.reset()

    @property
    def domains(self) -> tuple[str, ...]:
        """What the agent can talk about."""
        return tuple(self.world.ontology.domains)

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""
        self._goal, self._has_begun, self._has_listened = _NO_GOAL, False, False

    def draw_goal(self) -> str:
        """Begin a new dialogue about a test goal, and return the goal in words."""
        self.reset()
        goals = self.world.goals["test"]
        self._goal = goals[int(self._rng.integers(len(goals)))]
        return goal_text(self._goal.domains, self.world.templates)

    def reply(self, text: str) -> TaskReply:
        """Reply to what a person said."""
        if not self._has_begun:
            self._begin(self._goal)
            self._has_begun = True
        understood = self._understand(text)
        if not understood:
            return TaskReply([], (), "")
        if any(act.intent == BYE for act in understood):  # a simulated user's goodbye ends the dialogue, too
            goodbye = DialogueAct(BYE, GENERAL)
            return TaskReply(understood, (goodbye,), self.world.templates.render([goodbye], "agent"))
        exchange = self._answer(understood)
        self._has_listened = True
        return TaskReply(
            understood, exchange.said, exchange.text or self.world.templates.render(exchange.said, "agent")
        )

    def outcome(self) -> Outcome | None:
        """Outcome of the dialogue so far; ``None`` without a goal or a dialogue."""
        if not self._has_listened or self._goal is _NO_GOAL:
            return None
        return outcome_of(self._goal, self._exchanges, True, self.world.ontology, self.world.database)

    @property
    @abstractmethod
    def _exchanges(self) -> Sequence[Exchange]:
        """Turns of the dialogue."""

    @abstractmethod
    def _begin(self, goal: Goal) -> None:
        """Begin a dialogue."""

    @abstractmethod
    def _understand(self, text: str) -> list[DialogueAct]:
        """Acts in what the person said."""

    @abstractmethod
    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        """Answer what was understood."""
