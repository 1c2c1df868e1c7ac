"""Run folders read back, whole and damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from run_files import write_json, write_lines, write_run

from rl4dialog.core.errors import DataError
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.report.runs import read_run


def test_whole_run_is_read(tmp_path: Path) -> None:
    write_json(write_run(tmp_path) / "provenance.json", {"git": {"commit": "abc"}})
    run = read_run(tmp_path)
    assert run.column("iteration") == [1, 2, 3]
    assert run.column("rollout/kl") == pytest.approx([0.01, 0.02, 0.03])
    assert run.column("train/entropy_loss") == pytest.approx([-1.9, -1.8, -1.7])
    assert run.metrics["test"] == {0: {"m": 0.5, "d": 7.0}, 3: {"m": 1.0, "d": 8.0}}
    assert run.epochs("test") == [0, 3] and run.epochs("val") == []
    assert run.provenance == {"git": {"commit": "abc"}} and run.config["seed"] == 0 and run.notes == []


def test_last_line_that_was_cut_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "rollout_info.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(tmp_path)
    assert math.isnan(run.column("rollout/kl")[2]) and run.column("rollout/kl")[:2] == pytest.approx([0.01, 0.02])
    assert run.notes == ["The last line of rollout_info.jsonl is truncated and was skipped."]


def test_line_separators_in_records_end_no_line(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "rollout_info.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 4, "rollout/note": "a\u2028b"}\n')
    run = read_run(tmp_path)
    assert run.column("iteration") == [1, 2, 3, 4] and run.notes == []


def test_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "rollout_info.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first[:-5], *others]))
    with pytest.raises(DataError, match=r"rollout_info\.jsonl:1 is not JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", r"config\.json is not JSON"),
        ("config.json", "[1]", r"config\.json must be a JSON object, not \[1\]"),
        ("training_info.jsonl", "3\n", r"training_info\.jsonl:1 must be a JSON object, not 3"),
        (
            "rollout_info.jsonl",
            '{"iteration": null}\n',
            "the iteration of a logged line must be a whole number, not None",
        ),
        ("test_split_metrics.jsonl", '{"epoch": 0}\n', r"test_split_metrics\.jsonl: every line must be"),
    ],
)
def test_files_of_another_form_are_errors(tmp_path: Path, name: str, content: str, message: str) -> None:
    (write_run(tmp_path) / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


def test_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a run folder: it contains none of config\.json"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_run(tmp_path / "none")


def test_iterations_without_numbers_are_counted_and_the_last_of_doubles_stands(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollout_info.jsonl", [{"a": 1}, {"a": 2}, {"iteration": 2, "a": 5}])
    run = read_run(tmp_path)
    assert run.column("iteration") == [1, 2] and run.column("a") == [1, 5]
    assert run.notes == ["There is no config.json."]


def test_half_written_predictions_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "epoch_3_test_split_predictions.json"
    path.write_text(path.read_text()[:-30])
    run = read_run(tmp_path)
    assert run.predictions("test", 3) is None and run.predictions("test", 1) is None
    assert run.notes == ["epoch_3_test_split_predictions.json is skipped: it is truncated."]


def test_damaged_result_is_noted(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "result.json").write_text("{")
    assert read_run(run).notes == ["result.json is damaged, so the run counts as not complete."]


def test_flatten_joins_keys_with_dots_and_keeps_lists_and_empty_blocks() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [{"e": 2}]}) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}]}
