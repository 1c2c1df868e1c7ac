"""Names of speakers, in color where someone sees them."""

from __future__ import annotations

import builtins
import io
import sys
from typing import Any

import pytest

from rl4dialog.serving.line_chat import console_reader, speaker


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def test_name_has_a_color_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    show_terminal(monkeypatch)
    you, model = speaker("you"), speaker("model")
    assert you.startswith("\x1b[") and you.endswith("you:\x1b[0m ")
    assert you.split("you")[0] != model.split("model")[0]


def test_name_has_no_color_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    show_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    assert speaker("you") == "you: "
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert speaker("you") == "you: "


def test_readline_is_told_what_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    show_terminal(monkeypatch)
    asked: list[Any] = []
    monkeypatch.setattr(builtins, "input", lambda prompt: asked.append(prompt) or "hello")
    assert console_reader(Terminal(), asked.append)("\x1b[1;32myou:\x1b[0m ") == "hello"
    assert asked == ["\x01\x1b[1;32m\x02you:\x01\x1b[0m\x02 "]
