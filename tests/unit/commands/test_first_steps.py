import importlib.util
import shutil
import sys

import pytest

from rl4dialog.cli import main
from rl4dialog.commands.train import train
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
def test_chosen_demonstration_is_trained(name, trained, capsys):
    assert main(["demo", name]) == main(["demo", name, "--overwrite"]) == 0
    args, anew = trained
    load_config(args.config_path)
    assert (args.project_name, args.experiment_name) == ("demo", name)
    assert (args.resume, args.overwrite, anew.resume, anew.overwrite) == ("auto", False, None, True)
    assert f"  rl4dialog chat --run runs/demo/{name}" in capsys.readouterr().out


def test_command_that_is_not_on_the_path_is_named_by_its_own(trained, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [".venv/bin/rl4dialog", "demo"])
    for found, command in ((None, ".venv/bin/rl4dialog"), ("/usr/bin/rl4dialog", "rl4dialog")):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        assert main(["demo", "small_talk"]) == 0
        assert f"  {command} chat --run runs/demo/small_talk" in capsys.readouterr().out


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
