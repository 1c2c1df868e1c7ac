"""User feedback as preference data for TRL."""

from __future__ import annotations

from pathlib import Path

import pytest
from feedback_files import correction, preference, rating, write_feedback

from rl4dialog.cli import main
from rl4dialog.core.errors import DataError
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.preference_export import export_preferences


def test_choices_and_corrections_become_preference_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        preference("yes", "no", 1, ("hi", "hello", "tea?")),
        rating("yes", 1, ("tea?",)),
        correction("yes", "please", ("tea?",), persona="i like tea."),
        correction("yes", "yes"),
    ]
    source, target = write_feedback(tmp_path / "feedback.jsonl", given), tmp_path / "out" / "pairs.jsonl"
    assert main(["export-feedback", "--feedback", str(source), "--output", str(target)]) == 0
    assert "2 pairs written to" in (out := capsys.readouterr().out) and "2 judgements make no pair" in out
    samples = [sample for sample, _ in Conversational.prepare("train", path={"train": str(target)})]
    assert [sample.references for sample in samples] == [["no"], ["please"]]
    assert [(sample.meta_data or {})["rejected"] for sample in samples] == ["yes", "yes"]
    assert samples[0].prompt_or_input_text == "hi<EOU>hello<EOU>tea? <EOU>"
    assert "i like tea." in samples[1].prompt_or_input_text


def test_feedback_without_pairs_is_an_error(tmp_path: Path) -> None:
    source = write_feedback(tmp_path / "feedback.jsonl", [rating("yes", 1), preference("a", "a", 0)])
    with pytest.raises(DataError, match=r"no preferences or corrections of different replies.*1 rating, 1 preference"):
        export_preferences(source, tmp_path / "pairs.jsonl")
