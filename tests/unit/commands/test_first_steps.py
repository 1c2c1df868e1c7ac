import importlib.util
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_ins import bert_config, bert_tokenizer, save_classifier  # noqa: F401 (fixtures)

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.cli import main
from rl4dialog.commands.train import print_next, train
from rl4dialog.core import pretrained
from rl4dialog.core.config import load_config
from rl4dialog.core.errors import ModelError


@pytest.fixture
def trained(monkeypatch):
    calls = []

    def record(args):
        calls.append(args)
        return 0

    monkeypatch.setattr(train, "run", record)
    return calls


@pytest.mark.parametrize("name", ["table_booking", "tiny_booking", "openers", "small_talk", "guess_what"])
def test_chosen_demonstration_is_trained(name, trained):
    assert main(["demo", name]) == main(["demo", name, "--overwrite"]) == 0
    args, anew = trained
    load_config(args.config_path)
    assert (args.project_name, args.experiment_name) == ("demo", name)
    assert (args.resume, args.overwrite, anew.resume, anew.overwrite) == ("auto", False, None, True)


def test_what_comes_next_can_be_typed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/rl4dialog", "demo"])
    config = SimpleNamespace(can_talk=True)
    for found, command in ((None, ".venv/bin/rl4dialog"), ("/usr/bin/rl4dialog", "rl4dialog")):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        print_next(tmp_path / "my runs" / "e", config)
        said = capsys.readouterr().out
        assert said == f"Next:\n  {command} chat --run 'my runs/e'\n  open my runs/e/report.html in a browser\n"
    config.can_talk = False
    print_next(Path("/elsewhere"), config)
    assert capsys.readouterr().out == "Next:\n  open /elsewhere/report.html in a browser\n"


def test_chat_model_is_trained_if_it_can_be_had(trained, monkeypatch):
    monkeypatch.setattr(pretrained, "prepare_model", lambda name: name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert main(["demo"]) == 0
    assert [args.experiment_name for args in trained] == ["table_booking"]


@pytest.mark.parametrize("missing", ["model", "peft"])
def test_tiny_model_is_trained_otherwise_and_the_reason_is_printed(missing, trained, monkeypatch, capsys):
    def fail(name):
        raise ModelError("no network")

    monkeypatch.setattr(pretrained, "prepare_model", fail)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if missing == "peft" else name)
    assert main(["demo"]) == 0
    assert [args.experiment_name for args in trained] == ["tiny_booking"]
    reason = "no network" if missing == "model" else "pip install 'rl4dialog[lora]'"
    assert reason in capsys.readouterr().err


def test_existing_classifier_is_measured_and_not_trained(tmp_path, capsys, save_classifier):  # noqa: F811
    folder = save_classifier(["inform", "question", "directive", "commissive"])
    pool = ["classifier", "--datapool_args", "{n_train: 4, n_val: 30}"]
    assert main([*pool, "--evaluate", folder]) == 0
    said = capsys.readouterr().out
    counts = [[int(number) for number in line.split()] for line in said.splitlines()[-4:]]
    samples = [sample for sample, _ in DataPoolRegistry.get("small_talk", {"split": "val", "n_train": 4, "n_val": 30})]
    acts = [int(sample.meta_data["intent"][0]) for sample in samples]
    assert [sum(row) for row in counts] == [acts.count(act) for act in (1, 2, 3, 4)]
    right = sum(counts[act][act] for act in range(4)) / len(samples)
    assert f"accuracy on val: {right:.4f}; rows: true" in said
    for extra, message in (
        ([], "pass --output_dir to train a classifier, or --evaluate"),
        (["--evaluate", folder, "--n_epochs", "2"], "--n_epochs is for training, but --evaluate trains nothing"),
        (["--evaluate", folder, "--output_dir", str(tmp_path)], "--output_dir is for training"),
    ):
        assert main([*pool, *extra]) == 2
        assert message in capsys.readouterr().err
