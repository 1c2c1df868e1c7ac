"""Commands that an experiment would start, done in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.experiments import own_process


class FakeProcess:
    """A command that has ended at its second poll, or once it is terminated."""

    def __init__(self, code: int, polls: int = 2) -> None:
        self.code, self.polls = code, polls

    def poll(self) -> int | None:
        self.polls -= 1
        return None if self.polls > 0 else self.code

    def terminate(self) -> None:
        self.code, self.polls = 75, 0

    kill = terminate

    def wait(self) -> int:
        return self.code


def replace_commands(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[list[str], Path | None], FakeProcess]
) -> list[list[str]]:
    """Start something else in place of commands, given their arguments and output; returns the list of the former."""
    commands: list[list[str]] = []

    def start_command(arguments: list[str], output: Path | None = None, **others: Any) -> FakeProcess:
        commands.append(arguments)
        return start(arguments, output)

    monkeypatch.setattr(own_process, "start_command", start_command)
    monkeypatch.setattr(own_process, "_POLL_S", 0.001)
    return commands
