"""Teaching in the terminal: what the commands do, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from echo_model import Echo

from rl4dialog.core.feedback import read_feedback
from rl4dialog.core.types import PartnerReply
from rl4dialog.serving.teaching import Situation, Teaching
from rl4dialog.serving.teaching_terminal import COMMANDS, TeachingTerminal


def taught(tmp_path: Path, *lines: str, situations: Any, **kwargs: Any) -> str:
    """What is printed if a person types these lines."""
    printed, rest = [], iter(lines)

    def read(prompt: str) -> str:
        for line in rest:
            printed.append(f"{prompt}{line}\n")
            return line
        raise EOFError

    TeachingTerminal(Teaching(Echo(), situations, tmp_path / "f.jsonl", **kwargs), read, printed.append).run()
    return "".join(printed)


def test_session_prints_only_what_is_new(tmp_path: Path) -> None:
    situation = Situation(["well", "hi", "so\x1b"], "i sing .", "food", lambda: lambda said: PartnerReply(f"re {said}"))
    lines = ("/up", "better", "/next", "")
    printed = taught(tmp_path, *lines, situations=[situation, Situation(["a"])], goals=["food", "work"])
    note = f"was appended to {tmp_path / 'f.jsonl'}."
    assert printed.split("\n\n", 1)[1] == (
        "0 of 2 done.\npersona: i sing .\npartner: well\nmodel: hi\npartner: so\ufffd\ngoal: food\nmodel: SO\ufffd\n"
        f"you: /up\nThe rating {note}\npartner: re SO\ufffd\ngoal: work\nmodel: RE SO\ufffd\n"
        f"you: better\nThe correction {note}\npartner: re better\ngoal: food\nmodel: RE BETTER\n"
        "you: /next\n\n1 of 2 done.\npartner: a\nmodel: A\nyou: \n\n"
    )
    rating, correction = read_feedback(tmp_path / "f.jsonl")
    assert rating.replies[0].text == "SO\x1b" and correction.turns[-1] == "re SO\x1b"


def test_teaching_ends_after_the_last_situation(tmp_path: Path) -> None:
    printed = taught(tmp_path, "/down", "/down", "c", "never read", situations=[Situation(["a"])])
    assert "The model has no other reply" in printed and "error: this reply is already rejected" in printed
    assert printed.endswith("\n1 of 1 done.\n") and "never read" not in printed
    printed = taught(tmp_path, situations=[Situation(["a"])])
    assert printed == "1 of 1 done. There is nothing left to judge.\n"


def test_goals_are_listed_and_set(tmp_path: Path) -> None:
    goals: dict[str, Any] = {"goals": ["food", "work"]}
    printed = taught(tmp_path, "/goal", "/goal work", situations=[Situation(["a"], None, "food")], **goals)
    assert "food, work\n" in printed and printed.count("goal: work\nmodel: A\n") == 1 and "persona" not in printed
    printed = taught(tmp_path, "/goal", "/quit", situations=[Situation(["a"])])
    assert "error: the samples have no goals" in printed


def test_all_commands_are_listed(tmp_path: Path) -> None:
    printed = taught(tmp_path, "/help", "/upp", situations=[Situation(["a"])])
    assert all(f"  /{name}" in printed and command.help in printed for name, command in COMMANDS.items())
    assert "error: unknown command '/upp'; did you mean '/up'?" in printed
