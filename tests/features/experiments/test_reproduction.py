"""How a run is done again, where two runs differ first, and what is told of the difference."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from run_files import write_json, write_lines
from runs import make_config
from safetensors.torch import save_file

from rl4dialog import cli
from rl4dialog.features.experiments import reproduction as module
from rl4dialog.features.experiments.reproduction import Finding, compare_runs

PROVENANCE = {
    "hardware": {"torch_threads": 3, "gpus": []},
    "versions": {"torch": "1"},
    "data_hash": {"train": "a"},
}
INFO = {"iteration": 1, "rollout/kl": 0.5, "time/generate_s": 3.0, "memory/peak_mib": 9.0, "tokens_per_s": 1.0}
PREDICTIONS = [{"sample_id": 4, "generated_text": "yes"}, {"sample_id": 7, "generated_text": "no"}]
WEIGHTS = {"a": torch.zeros(2, 2), "b": torch.ones(3)}
PROVENANCE["prompt_time"] = "2026-01-31T12:00:00+00:00"
INFOS, MODEL = "rollout_info.jsonl", "model/model.safetensors"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "p" / "e"
    folder.mkdir(parents=True)
    (tmp_path / "mine.py").write_text("")
    provenance = {**PROVENANCE, "config_path": str(tmp_path / "c.yml"), "working_directory": str(tmp_path)}
    contents = {
        "config.json": make_config(tmp_path, imports=["./mine.py", "json"]),
        "result.json": {"iterations": 1},
        "provenance.json": provenance,
        "rollout_info.jsonl": {"iteration": 1, "rollout/kl": 0.5},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def started(run, monkeypatch):
    """What is started in place of a training, which leaves a copy of the run, with these ``changes`` of its files."""
    call = {"changes": {}, "code": 0}

    def run_command(arguments, folder, environment):
        options = [text for text in arguments[1:] if text != "--overwrite"]
        call["how"] = [text for text in arguments if text in ("--overwrite", "--resume")]
        given = dict(zip(options[::2], options[1::2], strict=True))
        call.update(folder=folder, environment=environment, **given)
        call["config"] = json.loads(Path(given["--config_path"]).read_text())
        output = Path(given["--base_path_to_store_results"]) / given["--project_name"] / given["--experiment_name"]
        shutil.copytree(run, output, dirs_exist_ok=True)
        shutil.copy(given["--config_path"], output / "config.json")
        for name, content in call["changes"].items():
            (output / name).write_text(json.dumps(content))
        return int(call["code"])

    monkeypatch.setattr(module, "run_command", run_command)
    return call


def test_the_same_config_runs_where_and_as_the_run_did(run, started, tmp_path):
    assert cli.main(["reproduce", str(run), "--trust"]) == 0
    assert started["folder"] == tmp_path and started["environment"] == {
        "OMP_NUM_THREADS": "3",
        "RL4DIALOG_START_TIME": "2026-01-31T12:00:00+00:00",
    }
    imports = started["config"].pop("imports")
    assert [Path(name) for name in imports] == [tmp_path / "mine.py", Path("json")]
    original = json.loads((run / "config.json").read_text())
    assert started["config"] == {key: value for key, value in original.items() if key != "imports"}
    assert (run.parent / "e_reproduced" / "result.json").is_file()
    assert not Path(started["--config_path"]).exists()


def test_first_difference_and_its_likely_causes_are_told(run, started, capsys):
    changed = {**PROVENANCE, "versions": {"torch": "2"}, "data_hash": {"train": "b"}}
    info = {"iteration": 1, "rollout/kl": 0.25}
    started["changes"] = {"rollout_info.jsonl": info, "provenance.json": changed}
    assert cli.main(["reproduce", str(run), "--trust"]) == 1
    output = capsys.readouterr().out
    assert "iteration 1, rollout/kl" in output and "0.25" in output
    assert "1 of 1 files differ." in output and "as possible causes" in output
    assert "versions.torch" in output and "data_hash.train" in output and "torch_threads" not in output

    del started["changes"]["provenance.json"]
    assert cli.main(["reproduce", str(run), "--trust", "--overwrite"]) == 1
    assert "The provenance shows no difference in code, data or machine." in capsys.readouterr().out
    started["code"] = 139
    assert cli.main(["reproduce", str(run), "--trust", "--overwrite"]) == 139
    output, errors = capsys.readouterr()
    assert not output, "a run that fails again is not compared"
    assert "e_reproduced (exit code 139: SIGSEGV). The same command repeats what is not complete" in errors


def test_nothing_is_overwritten_unless_asked_for(run, started, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    write_json(tmp_path / "there" / "config.json", make_config(tmp_path, seed=4))
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(tmp_path / "there")]) == 2
    assert "pass --overwrite to replace it, or another --output_path" in capsys.readouterr().err
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(tmp_path / "there"), "--overwrite"]) == 0
    assert started["how"] == ["--overwrite"]
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(run), "--overwrite"]) == 2
    assert "cannot be reproduced in its own folder" in capsys.readouterr().err
    (run / "result.json").unlink()
    assert cli.main(["reproduce", str(run), "--trust"]) == 2
    assert "is not complete: its result.json" in capsys.readouterr().err


@pytest.mark.parametrize("left", [{}, {".lock": ""}, {".config.json.tmp": "{"}, {"config.json": None}])
def test_interrupted_reproduction_is_resumed_by_the_same_command(run, started, left):
    started["code"] = 75
    output = run.with_name("e_reproduced")
    if "config.json" in left:
        assert cli.main(["reproduce", str(run), "--trust"]) == 75
    else:
        output.mkdir()
        for name, text in left.items():
            (output / name).write_text(text)
    started["code"] = 0
    for _ in range(2):  # a complete one is compared again
        assert cli.main(["reproduce", str(run), "--trust"]) == 0 and started["how"] == ["--resume"]


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
