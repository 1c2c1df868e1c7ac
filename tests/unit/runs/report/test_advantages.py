"""Utterances that the values find best and worst."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl4dialog.runs.report.advantages import JudgedUtterance, extreme_utterances
from rl4dialog.runs.report.predictions import Predictions, read_predictions


def predictions(tmp_path: Path, *records: dict[str, Any]) -> Predictions:
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps([{"sample_id": i, "ref_text": "", **each} for i, each in enumerate(records)]))
    found = read_predictions(path)
    assert found is not None
    return found


def reply(prompt: str, text: str, *advantages: float) -> dict[str, Any]:
    return {"prompt_text": f"x <EOU> {prompt} <EOU>", "generated_text": text, "advantages": list(advantages)}


def test_utterances_are_ranked_and_each_is_shown_once(tmp_path: Path) -> None:
    rows = [reply("a", "good", 2.0), reply("a", "good", 1.9), reply("b", "bad", -1.0), reply("b", "so so", 0.5)]
    found = extreme_utterances(predictions(tmp_path, *rows))
    assert found == {
        "Highest advantage": [JudgedUtterance(2.0, "a", "good", "0")],
        "Lowest advantage": [JudgedUtterance(-1.0, "b", "bad", "2")],
    }


def test_each_utterance_of_a_conversation_counts_with_what_it_answers(tmp_path: Path) -> None:
    turns = [
        {"speaker": "partner", "text": "hello", "given": True},
        {"speaker": "agent", "text": "one", "reward": 0.0},
        {"speaker": "partner", "text": "why"},
        {"speaker": "agent", "text": "two", "reward": 0.0},
    ]
    row = {**reply("hello", "one", -0.5, 0.25), "turns": turns, "outcome": {}, "ended_by": None}
    found = extreme_utterances(predictions(tmp_path, row))
    assert [(each.heard, each.text) for each in found["Highest advantage"]] == [("why", "two")]
    assert [(each.heard, each.text) for each in found["Lowest advantage"]] == [("hello", "one")]


def test_runs_without_values_have_none(tmp_path: Path) -> None:
    row = {"prompt_text": "a", "generated_text": "b"}
    assert extreme_utterances(predictions(tmp_path, row, row)) == {} == extreme_utterances(None)


def test_selected_rows_keep_their_advantages(tmp_path: Path) -> None:
    found = predictions(tmp_path, reply("a", "x", 1.0), reply("a", "y", 2.0)).select([1])
    assert found.advantages == [[2.0]]
