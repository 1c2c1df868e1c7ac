"""The report of an improvement, from the run folder of its comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl4dialog.runs.report.improvement_report import effects, write_improvement_report


def write_evaluation(folder: Path, split: str, epoch: int, reply: str, loss: float, n: int = 1) -> None:
    records = [
        {
            "split_name": split,
            "sample_id": str(i),
            "prompt_text": "hello<EOU>how are you <EOU>",
            "generated_text": reply,
            "ref_text": "<START-1>fine & you<END-1>",
            "loss/reference": loss,
        }
        for i in range(n)
    ]
    (folder / f"epoch_{epoch}_{split}_split_predictions.json").write_text(json.dumps(records))
    with open(folder / f"{split}_split_metrics.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "metrics": {"loss/reference": loss}}) + "\n")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2.0, 1.0, "significantly better: loss/reference; significantly worse: nothing"),
        (
            1.0,
            2.0,
            "significantly better: nothing; significantly worse: loss/reference. The model before is the better one",
        ),
        (1.0, 1.0, "no metric changed significantly on the test prompts"),
    ],
)
def test_effects_are_said_in_words(tmp_path: Path, before: float, after: float, said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for epoch, loss in enumerate((before, after)):
        write_evaluation(tmp_path, "test", epoch, "reply", loss, n=60)
    assert effects(tmp_path) == said


def test_few_prompts_give_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for epoch, loss in enumerate((2.0, 1.0)):
        write_evaluation(tmp_path, "test", epoch, "reply", loss, n=6)
    assert effects(tmp_path) == "no verdict, which takes at least 50 test prompts; there are 6"


@pytest.mark.parametrize("with_corrections", [True, False])
def test_facts_and_corrected_replies_are_shown(tmp_path: Path, with_corrections: bool) -> None:
    folder = tmp_path / "comparison"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for epoch, (reply, loss) in enumerate((("bad reply", 2.0), ("good reply", 1.0))):
        write_evaluation(folder, "test", epoch, reply, loss)
        if with_corrections:
            write_evaluation(folder, "corrections", epoch, f"{reply} here", loss)
    facts = {"feedback": "20 preferences", "trained by": "corrections <alone>"}
    page = write_improvement_report(folder, tmp_path / "report.html", facts).read_text(encoding="utf-8")
    assert "20 preferences" in page and "corrections &lt;alone&gt;" in page
    assert ("Corrected replies" in page) is with_corrections
    marked = "<mark>bad</mark> reply here" in page and "<mark>good</mark> reply here" in page
    assert marked is with_corrections and "fine &amp; you" in page
    assert ("<h3>correction</h3>" in page) is with_corrections
    assert 'title="lower is better"' in page and "before and after. ↑" in page
