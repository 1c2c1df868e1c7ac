"""How a run is done again, and what is told of the difference."""

import json
import shutil
from pathlib import Path

import pytest
from child_commands import FakeProcess
from run_files import write_json
from runs import make_config

from rl4dialog import cli
from rl4dialog.core.run_format import FORMAT, KEY
from rl4dialog.features.experiments import reproduction as module
from rl4dialog.training import own_process

PROVENANCE = {"hardware": {"torch_threads": 3, "gpus": []}, "versions": {"torch": "1"}, "data_hash": {"train": "a"}}
PROVENANCE["prompt_time"] = "2026-01-31T12:00:00+00:00"


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


def test_run_from_elsewhere_is_refused_without_trust(run, started, refused):
    config = json.loads((run / "config.json").read_text())
    partner = {"id": "openai", "args": {"base_url": "http://localhost:1", "model": "m", "api_key_env": "MY_SECRET"}}
    config["env"]["args"].update(max_turns=2, partner=partner)
    write_json(run / "config.json", {**config, "imports": []})
    told = ("base_url: http://localhost:1, ", "--trust", "env.args.partner.args.api_key_env: MY_SECRET", "dialogues")
    refused(cli.main(["reproduce", str(run)]), *told)
    write_json(run / "config.json", {**config, KEY: FORMAT + 5})
    refused(cli.main(["reproduce", str(run)]), f"(format {FORMAT + 5}); this version reads up to {FORMAT}")
    assert "config" not in started


def test_reproduced_run_is_identical(plain_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def start(arguments, folder, environment, output=None):  # another process takes seconds to load torch
        with pytest.MonkeyPatch.context() as inside:
            inside.chdir(folder or Path.cwd())
            for name, value in environment.items():
                inside.setenv(name, value)
            return FakeProcess(cli.main(arguments))

    monkeypatch.setattr(own_process, "start_command", start)
    again = tmp_path / "project" / "again"
    assert cli.main(["reproduce", str(plain_run), "--trust", "--output_path", str(again)]) == 0
    assert "Identical: all" in capsys.readouterr().out
    places = [json.loads((each / "provenance.json").read_text())["working_directory"] for each in (plain_run, again)]
    assert places[0] == places[1]
