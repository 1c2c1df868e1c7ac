"""Replies that read no prompt, beside those of a run's evaluation."""

import json

import trivial_replies
from runs import write_dialogues

from rl4dialog.scores.overlap import ChrfMetric


def chrf(marker):
    metric = ChrfMetric()
    metric.append_to_texts = marker
    return [metric]


def test_table_has_trivial_replies_and_those_of_a_run_with_and_without_the_marker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trivial_replies, "build_metrics", chrf)
    monkeypatch.setattr(trivial_replies, "KEYS", {"lexical/chrf": "chrF"})
    rows = [
        {"prompt_text": "a", "generated_text": "yes", "ref_text": "<START-1>yes<END-1><START-2>sure\n<END-2>"},
        {"prompt_text": "b", "generated_text": "", "ref_text": "<START-1>no<END-1>"},
    ]
    file = tmp_path / "epoch_1_test_split_predictions.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    data = write_dialogues(tmp_path / "data")
    trivial_replies.main(["--path", str(data), "--context_size", "2", "--predictions", str(file)])
    _, _, *lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = {name: list(map(float, numbers)) for name, *numbers in cells}
    assert list(found) == ["random reference", "constant reply", "reference", str(file)]
    assert found["reference"] == [1.0, 1.0]
    for name in ("random reference", "constant reply", str(file)):
        with_marker, without = found[name]
        assert with_marker > without, "every reply shares the marker with every reference"
