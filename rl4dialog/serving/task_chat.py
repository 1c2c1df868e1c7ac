"""A person's dialogue with an agent for a task, about a goal or without one; for the terminal and the page."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rl4dialog.core.errors import ConfigError

NOTHING = "(nothing)"
"""What is shown for an agent that says nothing."""
_GOODBYE = "bye"
# The time to understand a text grows with the square of its length.
_MAX_CHARACTERS = 2000


class Reply(Protocol):
    """A turn of the agent; see `rl4dialog.inference.task_agent.TaskReply`."""

    @property
    def understood(self) -> Sequence[Any]: ...

    @property
    def acts(self) -> Sequence[Any]: ...

    @property
    def text(self) -> str: ...


class Scores(Protocol):
    """Outcome of a dialogue."""

    @property
    def success(self) -> bool: ...

    @property
    def failures(self) -> Sequence[str]: ...


class Agent(Protocol):
    """What the person talks to."""

    name: str

    @property
    def domains(self) -> Sequence[str]:
        """What the agent can talk about."""

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""

    def draw_goal(self) -> str:
        """Begin a new dialogue about a goal, and return the goal in words."""

    def reply(self, text: str) -> Reply:
        """Reply to what a person said."""

    def outcome(self) -> Scores | None:
        """Outcome of the dialogue so far; ``None`` without a goal or a dialogue."""


class Turn(NamedTuple):
    """What a person said, and the agent's reply."""

    text: str
    reply: Reply


class TaskChat:
    """A dialogue with an agent, which keeps the dialogue's state; the next one begins with a goal or a message.

    Args:
        agent: The agent, for this person alone.

    Attributes:
        agent: The same.
        goal: The goal in words; empty without one.
        turns: The turns so far.
        is_over: Whether the dialogue has ended. A message then begins a new one, without a goal.
        revision: Another number after each change, and in each chat.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent, self.goal, self.turns = agent, "", list[Turn]()
        self.is_over, self.revision = False, secrets.randbelow(2**31)
        self._final: Scores | None = None  # outcome of a dialogue that is over

    @property
    def score(self) -> str:
        """Whether the goal is reached, and what is missing; empty without a goal or a dialogue."""
        outcome = self._outcome
        if outcome is None:
            return ""
        return "Success: the goal is reached." if outcome.success else f"Failure: {'; '.join(outcome.failures)}."

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""
        self.agent.reset()
        self._begin("")

    def draw_goal(self) -> None:
        """Begin a new dialogue about a goal."""
        self._begin(self.agent.draw_goal())

    def say(self, text: str) -> Reply:
        """Say something to the agent; a goodbye ends the dialogue."""
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"a message can have at most {_MAX_CHARACTERS} characters, not {len(text)}; shorten it")
        if self.is_over:
            self.agent.reset()
        reply = self.agent.reply(text)
        if not reply.understood:
            known = ", ".join(self.agent.domains)
            raise ConfigError(f"nothing was understood, so the agent did not answer; it knows: {known}")
        if self.is_over:
            self._begin("")
        self.turns.append(Turn(text, reply))
        if any(act.intent == _GOODBYE for act in reply.understood):
            self._end()
        self.revision += 1
        return reply

    def end(self) -> None:
        """End the dialogue about the goal."""
        if self.is_over or not self.turns or not self.score:
            raise ConfigError("there is no dialogue about a goal to score; begin one with a new goal (/goal)")
        self._end()
        self.revision += 1

    def record(self) -> Mapping[str, Any] | None:
        """The dialogue as a record for a file; ``None`` if nothing was said."""
        said = [
            {"role": role, "content": content}
            for text, reply in self.turns
            for role, content in (("user", text), ("assistant", reply.text))
        ]
        outcome = self._outcome
        scored = {} if outcome is None else {"goal_text": self.goal, "success": outcome.success}
        return {"messages": said, "model": self.agent.name, **scored} if said else None

    @property
    def _outcome(self) -> Scores | None:
        return self._final if self.is_over else self.agent.outcome()

    def _end(self) -> None:
        self.is_over, self._final = True, self.agent.outcome()

    def _begin(self, goal: str) -> None:
        self.goal, self.turns, self.is_over = goal, [], False
        self.revision += 1


def in_words(acts: Sequence[Any]) -> str:
    """Dialogue acts as they are written."""
    return " ".join(map(str, acts)) or "none"
