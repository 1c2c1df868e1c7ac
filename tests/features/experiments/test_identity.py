"""Where two runs differ first."""

import pytest
import torch
from run_files import write_json, write_lines
from safetensors.torch import save_file

from rl4dialog.features.experiments.identity import Finding, compare_runs

INFO = {"iteration": 1, "rollout/kl": 0.5, "time/generate_s": 3.0, "memory/peak_mib": 9.0, "tokens_per_s": 1.0}
PREDICTIONS = [{"sample_id": 4, "generated_text": "yes"}, {"sample_id": 7, "generated_text": "no"}]
WEIGHTS = {"a": torch.zeros(2, 2), "b": torch.ones(3)}
INFOS, MODEL = "rollout_info.jsonl", "model/model.safetensors"


def write_run(folder, infos=(INFO,), score=1.0, predictions=PREDICTIONS, weights=WEIGHTS):
    (folder / "model").mkdir(parents=True)
    write_lines(folder / "rollout_info.jsonl", infos)
    write_lines(folder / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"a/x": score}}])
    write_json(folder / "epoch_0_test_split_predictions.json", predictions)
    save_file(weights, folder / "model" / "model.safetensors")
    return folder


def findings(tmp_path, **other):
    """Those of a run and another that differs by the arguments."""
    return compare_runs(write_run(tmp_path / "one"), write_run(tmp_path / "other", **other))


def test_only_times_and_memory_may_differ(tmp_path):
    info = {**INFO, "time/generate_s": 1.0, "memory/peak_mib": 2.0, "tokens_per_s": 3.0}
    found = findings(tmp_path, infos=[info])
    names = [INFOS, "test_split_metrics.jsonl", "epoch_0_test_split_predictions.json", MODEL]
    assert [finding.file for finding in found] == names
    assert all(finding.where is None for finding in found)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"infos": [{**INFO, "rollout/kl": 0.25}]}, (INFOS, "iteration 1, rollout/kl", 0.5, 0.25)),
        ({"infos": [INFO, INFO]}, (INFOS, "number of records", 1, 2)),
        ({"infos": [{"iteration": 1}]}, (INFOS, "iteration 1, rollout/kl", 0.5, "(missing)")),
        ({"score": None}, ("test_split_metrics.jsonl", "epoch 0, a/x", 1.0, None)),
        (
            {"predictions": [PREDICTIONS[0], {"sample_id": 7, "generated_text": "so"}]},
            ("epoch_0_test_split_predictions.json", "sample 7, generated_text", "no", "so"),
        ),
        ({"weights": {**WEIGHTS, "a": torch.tensor([[0.0, 0.0], [2.0, 1.0]])}}, (MODEL, "a[1, 0]", 0.0, 2.0)),
        ({"weights": {"a": WEIGHTS["a"]}}, (MODEL, "b", "shape (3,)", "(missing)")),
    ],
)
def test_first_difference_is_named(tmp_path, other, expected):
    assert [finding for finding in findings(tmp_path, **other) if finding.where] == [Finding(*expected)]


def test_bits_count_and_not_numbers(tmp_path):
    found = findings(tmp_path, weights={**WEIGHTS, "a": -torch.zeros(2, 2)})[-1]
    assert found.where == "bits of equal numbers" and found.original != found.reproduced


def test_file_of_one_run_alone_is_a_difference(tmp_path):
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other")
    (one / "training_info.jsonl").write_text('{"iteration": 1}\n')
    (other / "model" / "model.safetensors").unlink()
    found = {finding.file: finding for finding in compare_runs(one, other) if finding.where}
    assert found["training_info.jsonl"] == Finding("training_info.jsonl", "number of records", 1, 0)
    assert found["model/model.safetensors"].reproduced == "(missing)"
