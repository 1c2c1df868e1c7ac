"""A chat, line by line, with an agent in dialogue acts that says what the test wants."""

from __future__ import annotations

import json
from pathlib import Path

from cafe_agent import Cafe

from rl4dialog.serving.task_terminal import TaskTerminalChat


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
    assert printed.index("agent: Goodbye.") < printed.index("Success: the goal is reached.\nA new dialogue begins.\n")
    assert "error: there is no dialogue about a goal to score; begin one with a new goal (/goal)" in printed


def test_goodbye_without_a_goal_scores_nothing() -> None:
    assert talk("tea?", "bye").endswith("agent: Goodbye.\nA new dialogue begins.\n\n")


def test_agent_that_says_nothing_is_shown() -> None:
    assert "agent: (nothing)\n" in talk("hm")


def test_failures_are_named() -> None:
    assert "Failure: cafe: drink not told." in talk("/goal", "hm", "/done")


def test_what_is_not_understood_is_said_and_the_chat_goes_on() -> None:
    printed = talk("blah", "tea?")
    assert "error: nothing was understood, so the agent did not answer; it knows: cafe\n" in printed
    assert printed.endswith("agent: There is tea.\n\n")


def test_acts_are_shown_on_request() -> None:
    printed = talk("tea?", "/acts", "tea?", "/acts", "tea?")
    assert printed.count("  understood: cafe-request(drink)\n") == 1
    assert printed.count("  acts: cafe-inform(drink=tea)\n") == 1


def test_dialogue_is_saved_with_goal_and_success(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    printed = talk(f"/save {file}", "/goal", "tea?", "bye", f"/save {file}", "/save x.txt")
    assert "error: there is no conversation to save yet" in printed
    assert "error: /save needs a .jsonl file, not 'x.txt'" in printed
    (record,) = map(json.loads, file.read_text().splitlines())
    assert record["goal_text"] == "Find tea." and record["success"] is True
    assert [message["content"] for message in record["messages"]] == ["tea?", "There is tea.", "bye", "Goodbye."]


def test_unknown_command_lists_those_of_this_chat() -> None:
    assert "unknown command '/gaol'; did you mean '/goal'? (/help lists the commands)" in talk("/gaol")
    printed = talk("/help", "/quit", "tea?")
    assert "/goal" in printed and "/persona" not in printed and "There is tea" not in printed
