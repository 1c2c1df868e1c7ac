"""How a run is done again, and what is told of the difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog import cli
from rl4dialog.experiments import reproduction as module

PROVENANCE: dict[str, Any] = {
    "hardware": {"torch_threads": 3, "gpus": []},
    "versions": {"torch": "1"},
    "data_hash": {"train": "a"},
}
PROVENANCE["prompt_time"] = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "p" / "e"
    folder.mkdir(parents=True)
    (tmp_path / "mine.py").write_text("")
    provenance = {**PROVENANCE, "config_path": str(tmp_path / "c.yml"), "working_directory": str(tmp_path)}
    contents: dict[str, Any] = {
        "config.json": make_config(tmp_path, imports=["./mine.py", "json"]),
        "result.json": {"iterations": 1},
        "provenance.json": provenance,
        "rollout_info.jsonl": {"iteration": 1, "rollout/kl": 0.5},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def started(run: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is started in place of a training, which leaves a copy of the run, with these ``changes`` of its files."""
    call: dict[str, Any] = {"changes": {}, "code": 0}

    def run_command(arguments: list[str], folder: Path, environment: dict[str, str]) -> int:
        given = dict(zip(arguments[1::2], arguments[2::2], strict=False))
        call.update(folder=folder, environment=environment, **given)
        call["config"] = json.loads(Path(given["--config_path"]).read_text())
        output = Path(given["--base_path_to_store_results"]) / given["--project_name"] / given["--experiment_name"]
        shutil.copytree(run, output, dirs_exist_ok=True)
        for name, content in call["changes"].items():
            (output / name).write_text(json.dumps(content))
        return int(call["code"])

    monkeypatch.setattr(module, "run_command", run_command)
    return call


def test_the_same_config_runs_where_and_as_the_run_did(run: Path, started: dict[str, Any], tmp_path: Path) -> None:
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


def test_first_difference_and_its_likely_causes_are_told(
    run: Path, started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {**PROVENANCE, "versions": {"torch": "2"}, "data_hash": {"train": "b"}}
    started["changes"] = {
        "rollout_info.jsonl": {"iteration": 1, "rollout/kl": 0.25},
        "provenance.json": changed,
    }
    assert cli.main(["reproduce", str(run), "--trust"]) == 1
    output = capsys.readouterr().out
    assert "iteration 1, rollout/kl" in output and "0.25" in output
    assert "1 of 1 files differ." in output and "as possible causes" in output
    assert "versions.torch" in output and "data_hash.train" in output and "torch_threads" not in output


def test_difference_without_a_known_cause_says_so(
    run: Path, started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    started["changes"] = {"rollout_info.jsonl": {"iteration": 1, "rollout/kl": 0.25}}
    assert cli.main(["reproduce", str(run), "--trust"]) == 1
    assert "The provenance shows no difference in code, data or machine." in capsys.readouterr().out


def test_run_that_fails_again_is_not_compared(
    run: Path, started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    started["code"] = 5
    assert cli.main(["reproduce", str(run), "--trust"]) == 5
    assert not capsys.readouterr().out


def test_nothing_is_overwritten_unless_asked_for(
    run: Path, started: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(tmp_path / "there")]) == 2
    assert "pass --overwrite to replace it, or another --output_path" in capsys.readouterr().err
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(tmp_path / "there"), "--overwrite"]) == 0
    assert cli.main(["reproduce", str(run), "--trust", "--output_path", str(run), "--overwrite"]) == 2
    assert "cannot be reproduced in its own folder" in capsys.readouterr().err
    (run / "result.json").unlink()
    assert cli.main(["reproduce", str(run), "--trust"]) == 2
    assert "is not complete: it has no result.json" in capsys.readouterr().err
