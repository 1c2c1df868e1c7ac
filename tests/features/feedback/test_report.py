"""The report of an improvement."""

import json

import pytest
from run_files import prediction, write_json

from rl4dialog.features.feedback.report import effects, write_improvement_report


def write_evaluation(folder, split, epoch, reply, loss, n=1):
    scores = {"loss/reference": loss, "ref_text": "<START-1>fine & you<END-1>"}
    write_json(folder / "config.json", {})
    path = folder / f"epoch_{epoch}_{split}_split_predictions.json"
    write_json(path, [{**prediction(i, reply), **scores} for i in range(n)])
    with open(folder / f"{split}_split_metrics.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "metrics": {"loss/reference": loss}}) + "\n")


@pytest.mark.parametrize(
    ("before", "after", "n", "said"),
    [
        (2.0, 1.0, 60, "better: loss/reference; significantly worse: nothing"),
        (1.0, 2.0, 60, "better: nothing; significantly worse: loss/reference. The model before is the better one"),
        (1.0, 1.0, 60, "no metric changed significantly on the test prompts"),
        (2.0, 1.0, 6, "no verdict, which takes at least 50 test prompts; there are 6"),
    ],
)
def test_effects_are_said_in_words(tmp_path, before, after, n, said):
    for epoch, loss in enumerate((before, after)):
        write_evaluation(tmp_path, "test", epoch, "reply", loss, n)
    assert effects(tmp_path).removeprefix("significantly ") == said


@pytest.mark.parametrize("with_corrections", [True, False])
def test_facts_and_corrected_replies_are_shown(tmp_path, with_corrections):
    folder = tmp_path / "comparison"
    folder.mkdir()
    for epoch, (reply, loss) in enumerate((("bad reply", 2.0), ("good reply", 1.0))):
        write_evaluation(folder, "test", epoch, reply, loss)
        if with_corrections:
            write_evaluation(folder, "corrections", epoch, f"{reply} here", loss)
    facts = {"feedback": "20 preferences", "trained by": "corrections <alone>"}
    page = write_improvement_report(folder, tmp_path / "report.html", "Result: good", facts).read_text(encoding="utf-8")
    assert "20 preferences" in page and "corrections &lt;alone&gt;" in page
    assert ("Corrected replies" in page) is with_corrections
    marked = "<mark>bad</mark> reply here" in page and "<mark>good</mark> reply here" in page
    assert marked is with_corrections and "fine &amp; you" in page
    assert ("<h3>correction</h3>" in page) is with_corrections
    assert 'title="lower is better"' in page and "before and after. ↑" in page
