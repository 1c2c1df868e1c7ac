"""A chat, line by line, with an agent in dialogue acts that says what the test wants."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rl4dialog.serving.task_terminal import TaskTerminalChat
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct


@dataclass
class Said:
    understood: list[DialogueAct]
    acts: list[DialogueAct]
    text: str


@dataclass
class Judged:
    success: bool
    failures: list[str] = field(default_factory=list)


class Cafe:
    """Says that there is tea, whatever is asked; the goal is to be told so."""

    name, domains = "cafe agent", ("cafe",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.has_goal, self.n_replies = False, 0

    def draw_goal(self) -> str:
        self.reset()
        self.has_goal = True
        return "Find tea."

    def reply(self, text: str) -> Said:
        if text == "blah":
            return Said([], [], "")
        if text == "bye":
            return Said([DialogueAct("bye", "general")], [], "Goodbye.")
        self.n_replies += 1
        drink = DialogueAct("inform", "cafe", "drink", "tea")
        return Said([DialogueAct("request", "cafe", "drink")], [drink], "There is tea.")

    def outcome(self) -> Judged | None:
        if not self.has_goal:
            return None
        return Judged(True) if self.n_replies else Judged(False, ["cafe: drink not told"])


def talk(*lines: str) -> str:
    printed: list[str] = []
    given = iter(lines)

    def read(prompt: str) -> str:
        if (line := next(given, None)) is None:
            raise EOFError
        return line

    TaskTerminalChat(Cafe(), read, printed.append).run()
    return "".join(printed)


def test_goal_is_given_and_its_outcome_told_at_goodbye() -> None:
    printed = talk("/goal", "what is there to drink?", "bye", "/done")
    assert "Goal: Find tea." in printed
    assert "agent: There is tea.\n" in printed
    assert printed.index("agent: Goodbye.") < printed.index("Success: the goal is reached.")
    assert "error: there is no dialogue about a goal to score; /goal starts one" in printed


def test_failures_are_named() -> None:
    assert "Failure: cafe: drink not told." in talk("/goal", "/done")


def test_what_is_not_understood_is_said_and_the_chat_goes_on() -> None:
    printed = talk("blah", "tea?")
    assert "(nothing was understood, so the agent did not answer; it knows: cafe)" in printed
    assert printed.endswith("agent: There is tea.\n\n")


def test_acts_are_shown_on_request() -> None:
    printed = talk("tea?", "/acts", "tea?", "/acts", "tea?")
    assert printed.count("  understood: cafe-request(drink)\n") == 1
    assert printed.count("  acts: cafe-inform(drink=tea)\n") == 1


def test_dialogue_is_saved_with_goal_and_success(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    printed = talk(f"/save {file}", "/goal", "tea?", f"/save {file}", "/save x.txt")
    assert "error: there is no conversation to save yet" in printed
    assert "error: /save needs a .jsonl file, not 'x.txt'" in printed
    (record,) = map(json.loads, file.read_text().splitlines())
    assert record["goal_text"] == "Find tea." and record["success"] is True
    assert [message["content"] for message in record["messages"]] == ["tea?", "There is tea."]


def test_unknown_command_lists_those_of_this_chat() -> None:
    assert "unknown command '/gaol'; did you mean '/goal'? (/help lists the commands)" in talk("/gaol")
    printed = talk("/help", "/quit", "tea?")
    assert "/goal" in printed and "/persona" not in printed and "There is tea" not in printed
