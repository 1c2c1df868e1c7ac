"""A chat in the terminal with an agent that speaks in dialogue acts, about a goal if the person asks for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.json_lines import append_record
from rl4dialog.serving.slash_commands import Command, parse_command
from rl4dialog.serving.terminal import visible

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
    """A turn of the agent; see `rl4dialog.inference.turn_level.act_agent.ActReply`."""

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


class ActTerminalChat:
    """A line-by-line dialogue between a person and an agent.

    Args:
        agent: The agent.
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
    """

    def __init__(self, agent: Agent, read_line: Callable[[str], str], write: Callable[[str], None]) -> None:
        self._agent, self._read_line, self._write = agent, read_line, write
        self._shows_acts, self._goal = False, ""
        self._messages: list[dict[str, str]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "goal": self._start_goal,
            "done": self._score,
            "acts": self._toggle_acts,
            "reset": self._reset,
            "save": self._save,
        }

    def run(self) -> None:
        """Chat until /quit or the end of the input."""
        about = ", ".join(self._agent.domains)
        self._write(f"Chat with {self._agent.name} about: {about}.\n")
        self._write("Type /goal for a goal to reach, /help for commands, /quit or Ctrl-D to end.\n")
        continues = True
        while continues:
            try:
                continues = self.take(self._read_line("you: ").strip())
            except EOFError:
                self._write("\n")
                return
            except KeyboardInterrupt:
                self._write("\n(type /quit or Ctrl-D to end the chat)\n")
            except RL4DialogError as error:
                self._write(f"error: {error}\n")

    def take(self, line: str) -> bool:
        """Process a line: run a command, or reply.

        Returns:
            Whether the chat continues.

        Raises:
            ConfigError: If the command is unknown, or cannot be executed.
        """
        if not line:
            return True
        if not line.startswith("/"):
            self._reply(line)
            return True
        name, argument = parse_command(line, COMMANDS)
        if name == "quit":
            return False
        self._commands[name](argument)
        return True

    def _reply(self, text: str) -> None:
        reply = self._agent.reply(text)
        if not reply.understood:
            known = ", ".join(self._agent.domains)
            self._write(f"(nothing was understood, so the agent did not answer; it knows: {known})\n")
            return
        if self._shows_acts:
            self._write(f"  understood: {' '.join(map(str, reply.understood))}\n")
        self._write(f"agent: {visible(reply.text) or '(nothing)'}\n")
        if self._shows_acts:
            self._write(f"  acts: {' '.join(map(str, reply.acts)) or 'none'}\n")
        self._messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply.text}]
        if any(act.intent == _GOODBYE for act in reply.understood):
            if self._agent.outcome() is not None:
                self._score("")
            self._reset("")

    def _help(self, argument: str) -> None:
        del argument
        for name, command in COMMANDS.items():
            self._write(f"  {f'/{name} {command.argument}'.strip():<12} {command.help}\n")

    def _start_goal(self, argument: str) -> None:
        del argument
        self._goal, self._messages = self._agent.draw_goal(), []
        self._write(f"Goal: {self._goal}\nSay goodbye, or /done, when you have everything.\n")

    def _score(self, argument: str) -> None:
        del argument
        outcome = self._agent.outcome()
        if outcome is None:
            raise ConfigError("there is no dialogue about a goal to score; /goal starts one")
        if outcome.success:
            self._write("Success: the goal is reached.\n")
        else:
            self._write(f"Failure: {'; '.join(outcome.failures)}.\n")

    def _toggle_acts(self, argument: str) -> None:
        del argument
        self._shows_acts = not self._shows_acts
        self._write(f"Dialogue acts are {'shown' if self._shows_acts else 'hidden'}.\n")

    def _reset(self, argument: str) -> None:
        del argument
        self._agent.reset()
        self._goal, self._messages = "", []
        self._write("A new dialogue begins.\n")

    def _save(self, argument: str) -> None:
        path = Path(argument).expanduser()
        if path.suffix != ".jsonl":
            raise ConfigError(f"/save needs a .jsonl file, not {argument!r}")
        if not self._messages:
            raise ConfigError("there is no dialogue to save yet")
        outcome = self._agent.outcome()
        scored = {} if outcome is None else {"goal_text": self._goal, "success": outcome.success}
        append_record(path, {"messages": self._messages, "model": self._agent.name, **scored})
        self._write(f"Appended to {path}.\n")
