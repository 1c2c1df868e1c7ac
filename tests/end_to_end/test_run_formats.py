"""Run folders of earlier versions are read and resumed; those of later ones are refused by every command.

The folders in ``run_folders/`` were written at the commits that name them, with the model in ``initial``. Each is a run
of two iterations that was stopped after the first. Add one whenever the format changes.
"""

import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml
from feature_rows import rows_of_features
from runs import make_config

import rl4dialog
from rl4dialog.cli import main
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, ModelError, RunFolderError
from rl4dialog.core.files import write_manifest
from rl4dialog.core.run_format import FORMAT, KEY
from rl4dialog.runs.listing import list_runs
from rl4dialog.runs.report.pages import write_report
from rl4dialog.training.policy_trainee import find_initial_critic

FOLDERS = Path(__file__).with_name("run_folders")
NAMES = sorted(path.name.partition(".")[0] for path in FOLDERS.glob("*.tar.xz"))
CONFIG = yaml.safe_load((FOLDERS / "config.yml").read_text())


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """Unpack a folder with its model, and make that the working directory, since its paths are relative."""
    monkeypatch.chdir(tmp_path)

    def unpack(name):
        with tarfile.open(FOLDERS / f"{name}.tar.xz") as file:
            file.extractall(tmp_path, filter="data")
        return tmp_path / "out" / name

    return unpack


def resume(name):
    place = ["--base_path_to_store_results", ".", "--project_name", "out", "--experiment_name", name]
    return main(["train", "--config_path", str(FOLDERS / "config.yml"), *place, "--resume"])


def test_there_is_a_folder_of_each_format():
    assert len(NAMES) == 3 and "format_2" in NAMES and f"format_{FORMAT}" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_evaluated_resumed_and_then_of_this_format(unpacked, name, capsys):
    run = unpacked(name)
    before = json.loads((run / "config.json").read_text()).get(KEY, 1)
    assert main(["evaluate", "--run", str(run), "--checkpoint", "last", "--output_path", "evaluated"]) == 0
    assert "length/words" in json.loads(Path("evaluated/metrics.json").read_text())["metrics"]
    assert write_report(run).is_file() and resume(name) == 0
    assert "Resumed after iteration 1 of 2" in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    assert config.pop(KEY) == FORMAT and (before == FORMAT) == (name == f"format_{FORMAT}")
    assert "on_worker_death" not in config["env"] and config["alg"]["args"] == CONFIG["alg"]["args"]
    state = json.loads((run / "checkpoints" / "iteration_000002" / "state.json").read_text())
    assert state[KEY] == FORMAT and state["normalizer"]["n"] > 0
    assert json.loads((run / "result.json").read_text())["iterations"] == 2


def test_a_later_format_is_refused_wherever_a_run_is_read(unpacked, capsys):
    run = unpacked(f"format_{FORMAT}")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, KEY: FORMAT + 5, "future": 1}))
    (run / "result.json").write_text('{"iterations": 2}')
    refused = f"(format {FORMAT + 5}); this version reads up to {FORMAT}"
    own = ["train", "--config_path", str(run / "config.json"), "--dry_run"]
    of_run = [[name, "--run", str(run)] for name in ("evaluate", *rows_of_features("COMMANDS_FOR_A_RUN"))]
    for command in (own, *of_run):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "was written by rl4dialog 0.1.0" in said and refused in said
    assert resume(run.name) == 2 and refused in capsys.readouterr().err
    with pytest.raises(RunFolderError, match=re.escape(refused)):
        write_report(run)
    assert refused in list_runs(run.parent)[0].state


def test_a_later_checkpoint_is_never_passed_over_for_an_earlier_one(unpacked, capsys):
    run = unpacked(f"format_{FORMAT}")
    checkpoint = run / "checkpoints" / "iteration_000001"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps({**state, KEY: FORMAT + 1}))
    (checkpoint / "manifest.json").unlink()
    write_manifest(checkpoint)
    assert resume(run.name) == 2 and f"this version reads up to {FORMAT}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of", "settings", "name"),
    [
        ("alg", {"gae_horizon": 1.25}, "alg.args.gae_horizon"),
        ("alg", {"value_gae_lambda": 1.0}, "alg.args.value_gae_lambda"),
        ("alg", {"baseline": "tether", "n_generations": 2}, "alg.args.baseline: tether"),
        ("policy", {"n_critics": 2}, "alg.policy.args.n_critics"),
        ("policy", {"value_range": [0.0, 9.0]}, "alg.policy.args.value_range"),
        ("policy", {"value_loss": "cross_entropy"}, "alg.policy.args.value_loss"),
    ],
)
def test_a_run_with_a_setting_that_was_removed_is_evaluated_but_not_trained(of, settings, name, unpacked, capsys):
    run = unpacked("format_2")
    config = json.loads((run / "config.json").read_text())
    (config["alg"] if of == "alg" else config["alg"]["policy"])["args"] |= settings
    (run / "config.json").write_text(json.dumps(config))
    of_run = ["--run", str(run), "--checkpoint", "last"]
    assert main(["evaluate", *of_run, "--output_path", "evaluated"]) == 0 and write_report(run).is_file()
    assert rl4dialog.load_policy(run, checkpoint="last").generate("Lets increase numbers")
    capsys.readouterr()
    # With its own config, with one that lacks the setting, and as a new run.
    own = ["train", "--config_path", str(run / "config.json")]
    place = ["--base_path_to_store_results", ".", "--project_name", "out", "--experiment_name", run.name]
    assert main([*own, *place, "--resume"]) == 2 and resume(run.name) == 2 and main([*own, "--dry_run"]) == 2
    refused = f"{name} was removed because it showed no gain (see docs/negative_results.md)"
    assert " ".join(capsys.readouterr().err.split()).count(refused) == 3


def test_a_critic_whose_values_had_a_range_has_none(unpacked):
    run = unpacked("format_2")
    texts = ["Lets increase numbers"], ["one two"]
    assert rl4dialog.load_policy(run, checkpoint="last").values(*texts)
    config = json.loads((run / "config.json").read_text())
    config["alg"]["policy"]["args"] |= {"value_range": [0.0, 9.0], "value_loss": "cross_entropy"}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"value_range.*, which was removed, so there are no values"):
        rl4dialog.load_policy(run, checkpoint="last").values(*texts)
    with pytest.raises(ConfigError, match=r"critic_from: .*value_range.*, which was removed; name another run"):
        find_initial_critic(parse_config(make_config(run.parent, alg__policy__args__critic_from=str(run)), "test"))


def test_what_an_earlier_version_wrote_and_this_one_cannot_read_names_that_version(unpacked, capsys):
    run = unpacked("956f44a8")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "forgotten": 1}))
    assert main(["evaluate", "--run", str(run)]) == 2 and resume(run.name) == 2
    said = capsys.readouterr().err
    writer = "was written by rl4dialog 0.1.0 at commit 956f44a8 (format 1), readable by that version"
    assert said.count("unknown key 'forgotten'") == said.count(writer) == 2
