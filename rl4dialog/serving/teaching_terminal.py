"""Teaching a model in the terminal: a line is a better reply, or a command."""

from __future__ import annotations

from collections.abc import Callable

from rl4dialog.data.openings import without_goal
from rl4dialog.serving.line_chat import LineChat, speaker, visible
from rl4dialog.serving.slash_commands import Command
from rl4dialog.serving.teaching import Teaching

COMMANDS = {
    "up": Command("", "accept the reply; the conversation continues with it"),
    "down": Command("", "reject the reply; the model writes another one"),
    "goal": Command("TEXT", "let the model reply to another goal; without TEXT, list the known ones"),
    "next": Command("", "go to the next situation"),
    "help": Command("", "list the commands"),
    "quit": Command("", "end the teaching"),
}
_ME = "me"


class TeachingTerminal(LineChat):
    """A person teaches a model, line by line.

    Args:
        teaching: The situations, and what becomes of judgements.
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
    """

    def __init__(self, teaching: Teaching, read_line: Callable[[str], str], write: Callable[[str], None]) -> None:
        super().__init__(read_line, write, COMMANDS)
        self._teaching, self._id = teaching, ""
        self._progress, self._n_printed = "", 0  # utterances of the situation, the reply to judge included
        self._goal: str | None = None

    def take(self, line: str) -> bool:
        return super().take(line) and (not line or self._show())

    def run(self) -> None:
        """Teach until everything is judged, /quit or the end of the input."""
        if self._teaching.is_done:
            self._write(f"{self._teaching.progress} There is nothing left to judge.\n")
        else:
            super().run()

    def _greet(self) -> None:
        self._write("Accept a reply with /up, reject it with /down, or type a better one. /help lists the commands.\n")
        self._show()

    def _show(self) -> bool:
        """Print what is new of the situation and the reply to judge.

        Returns:
            Whether there is one.
        """
        shown = self._teaching.current(_ME)
        if shown is None:
            self._write(f"\n{self._teaching.progress}\n")
            return False
        if shown.id == self._id:
            return True
        goal, progress, n_printed = self._teaching.goal(_ME), self._teaching.progress, self._n_printed
        if progress != self._progress:  # another situation
            n_printed, self._goal = 0, None
            self._write(f"\n{progress}\n")
            if persona := without_goal(shown.persona or "") if goal else shown.persona:
                self._write(f"persona: {visible(persona)}\n")
        for i, text in enumerate(shown.turns):
            if i >= n_printed:
                # The model answers the last one, and the sides alternate.
                self._write(f"{'partner' if (len(shown.turns) - i) % 2 else 'model'}: {visible(text)}\n")
        if goal is not None and goal != self._goal:
            self._write(f"goal: {visible(goal)}\n")
        self._write(f"{speaker('model')}{visible(shown.replies[0].text) or '(empty reply)'}\n")
        self._id, self._progress, self._n_printed, self._goal = shown.id, progress, len(shown.turns) + 1, goal
        return True

    # -- judgements ---------------------------------------------------------------------------------------------------

    def _reply(self, text: str) -> None:
        self._write(f"{self._teaching.correct(_ME, self._id, 0, text)}\n")

    def _do_up(self, argument: str) -> None:
        del argument
        self._write(f"{self._teaching.rate(_ME, self._id, 0, 1)}\n")

    def _do_down(self, argument: str) -> None:
        del argument
        self._write(f"{self._teaching.rate(_ME, self._id, 0, -1)}\n")

    def _do_goal(self, argument: str) -> None:
        if argument or not self._teaching.goals:
            self._teaching.set_goal(_ME, self._id, argument)
        else:
            self._write(f"{', '.join(self._teaching.goals)}\n")

    def _do_next(self, argument: str) -> None:
        del argument
        self._teaching.skip(_ME, self._id)
