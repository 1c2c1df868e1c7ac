"""A chat in the terminal with an agent that speaks in dialogue acts, about a goal if the person asks for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.line_chat import LineChat, speaker, visible
from rl4dialog.serving.slash_commands import Command

COMMANDS = {
    "help": Command("", "list the commands"),
    "goal": Command("", "start a new dialogue about a goal that you are given"),
    "done": Command("", "end the dialogue about the goal, and score it"),
    "acts": Command("", "show dialogue acts beside the words, or hide them"),
    "reset": Command("", "start a new dialogue without a goal"),
    "save": Command("FILE", "append the dialogue to a .jsonl file", needs_argument=True),
    "quit": Command("", "end the chat"),
}
_GOODBYE = "bye"


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


class TaskTerminalChat(LineChat):
    """A dialogue between a person and an agent.

    Args:
        agent: The agent.
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
    """

    def __init__(self, agent: Agent, read_line: Callable[[str], str], write: Callable[[str], None]) -> None:
        super().__init__(read_line, write, COMMANDS)
        self._agent = agent
        self._shows_acts, self._goal = False, ""
        self._messages: list[dict[str, str]] = []

    def _greet(self) -> None:
        self._write(f"Chat with {self._agent.name} about: {', '.join(self._agent.domains)}.\n")
        self._write("Type /goal for a goal to reach, /help for commands, /quit or Ctrl-D to end.\n")

    def _reply(self, text: str) -> None:
        reply = self._agent.reply(text)
        if not reply.understood:
            known = ", ".join(self._agent.domains)
            self._write(f"(nothing was understood, so the agent did not answer; it knows: {known})\n")
            return
        if self._shows_acts:
            self._write(f"  understood: {' '.join(map(str, reply.understood))}\n")
        self._write(f"{speaker('agent')}{visible(reply.text) or '(nothing)'}\n")
        if self._shows_acts:
            self._write(f"  acts: {' '.join(map(str, reply.acts)) or 'none'}\n")
        self._messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply.text}]
        if any(act.intent == _GOODBYE for act in reply.understood):
            if self._agent.outcome() is not None:
                self._do_done("")
            self._do_reset("")

    def _do_goal(self, argument: str) -> None:
        del argument
        self._goal, self._messages = self._agent.draw_goal(), []
        self._write(f"Goal: {self._goal}\nSay goodbye, or /done, when you have everything.\n")

    def _do_done(self, argument: str) -> None:
        del argument
        outcome = self._agent.outcome()
        if outcome is None:
            raise ConfigError("there is no dialogue about a goal to score; /goal starts one")
        if outcome.success:
            self._write("Success: the goal is reached.\n")
        else:
            self._write(f"Failure: {'; '.join(outcome.failures)}.\n")

    def _do_acts(self, argument: str) -> None:
        del argument
        self._shows_acts = not self._shows_acts
        self._write(f"Dialogue acts are {'shown' if self._shows_acts else 'hidden'}.\n")

    def _do_reset(self, argument: str) -> None:
        del argument
        self._agent.reset()
        self._goal, self._messages = "", []
        self._write("A new dialogue begins.\n")

    def _do_save(self, argument: str) -> None:
        outcome = self._agent.outcome()
        scored = {} if outcome is None else {"goal_text": self._goal, "success": outcome.success}
        about = {"messages": self._messages, "model": self._agent.name, **scored}
        self._append(argument, about if self._messages else None)
