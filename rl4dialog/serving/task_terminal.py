"""A chat in the terminal with an agent that speaks in dialogue acts, about a goal if the person asks for one."""

from __future__ import annotations

from collections.abc import Callable

from rl4dialog.serving.line_chat import LineChat, speaker, visible
from rl4dialog.serving.slash_commands import Command
from rl4dialog.serving.task_chat import NOTHING, Agent, TaskChat, in_words

COMMANDS = {
    "help": Command("", "list the commands"),
    "goal": Command("", "start a new dialogue about a goal that you are given"),
    "done": Command("", "end the dialogue about the goal, and score it"),
    "acts": Command("", "show dialogue acts beside the words, or hide them"),
    "reset": Command("", "start a new dialogue without a goal"),
    "save": Command("FILE", "append the dialogue to a .jsonl file", needs_argument=True),
    "quit": Command("", "end the chat"),
}

_BEGINS = "A new dialogue begins.\n"


class TaskTerminalChat(LineChat):
    """A dialogue between a person and an agent.

    Args:
        agent: The agent.
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
    """

    def __init__(self, agent: Agent, read_line: Callable[[str], str], write: Callable[[str], None]) -> None:
        super().__init__(read_line, write, COMMANDS)
        self._chat, self._shows_acts = TaskChat(agent), False

    def _greet(self) -> None:
        agent = self._chat.agent
        self._write(f"Chat with {agent.name} about: {', '.join(agent.domains)}.\n")
        self._write("Type /goal for a goal to reach, /help for commands, /quit or Ctrl-D to end.\n")

    def _reply(self, text: str) -> None:
        reply = self._chat.say(text)
        if self._shows_acts:
            self._write(f"  understood: {in_words(reply.understood)}\n")
        self._write(f"{speaker('agent')}{visible(reply.text) or NOTHING}\n")
        if self._shows_acts:
            self._write(f"  acts: {in_words(reply.acts)}\n")
        if self._chat.is_over:
            self._write_end()

    def _do_goal(self, argument: str) -> None:
        del argument
        self._chat.draw_goal()
        self._write(f"Goal: {self._chat.goal}\nSay goodbye, or /done, when you have everything.\n")

    def _do_done(self, argument: str) -> None:
        del argument
        self._chat.end()
        self._write_end()

    def _write_end(self) -> None:
        if self._chat.score:
            self._write(f"{self._chat.score}\n")
        self._write(_BEGINS)

    def _do_acts(self, argument: str) -> None:
        del argument
        self._shows_acts = not self._shows_acts
        self._write(f"Dialogue acts are {'shown' if self._shows_acts else 'hidden'}.\n")

    def _do_reset(self, argument: str) -> None:
        del argument
        self._chat.reset()
        self._write(_BEGINS)

    def _do_save(self, argument: str) -> None:
        self._append(argument, self._chat.record())
