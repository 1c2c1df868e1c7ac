"""What every test gets: a cache of its own, no network, a fixed seed, and the registries as they came."""

import functools
import gc
import logging
import os
import signal
import sys

import absl.logging
import pytest
import torch
from hypothesis import HealthCheck, settings
from runs import DENSE_REWARD, SAMPLING, complete_run, keep_registries, make_config, run_folder
from tiny import MODELS, make_tokenizer, shrink_built_in_models

from rl4dialog.runs import plots, provenance

# Fuzzing: the same few examples every time, or with --hypothesis-profile=long a thousand new ones.
_FUZZ = settings(deadline=20_000, suppress_health_check=list(HealthCheck), database=None)
settings.register_profile("short", _FUZZ, max_examples=100, derandomize=True)
settings.register_profile("long", _FUZZ, max_examples=1000)
settings.load_profile("short")

# Workers share the cores: what a test starts as a process of its own has one thread, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# rouge_score's logging would write to what pytest captures, and close it when a web server sets up its own logging.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

# pytest adds its handlers to each logger that does not pass records on, before every test: torch has fifty.
for _name, _logger in logging.root.manager.loggerDict.items():
    if _name.startswith("torch."):
        _logger.propagate = True

shrink_built_in_models()
_PLOT_REWARD_CURVE, _GIT_STATE = plots.plot_reward_curve, provenance.git_state


_OF_PACKAGE = functools.cache(provenance.git_state)


def _git_state(folder, tracks=None):
    return _GIT_STATE(folder) if tracks is None else _OF_PACKAGE(folder, tracks)


_LONG = {"training", "runs", "scores"}


def pytest_collection_modifyitems(items):
    """Put the many short modules last, so that the workers, which take a module at a time, end together."""
    items.sort(key=lambda item: "unit" in item.path.parts and not _LONG & {*item.path.parts})


def pytest_collection_finish():
    """Spare the garbage collector all that was imported and collected, which stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Keep the record of what was trained here out of the user's home, for whole modules, too; and save runs' time.

    They draw no curves, ask once for the state of this repository and for versions, and wait for no disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        patch.setattr(plots, "plot_reward_curve", lambda *args: None)
        patch.setattr(provenance, "git_state", _git_state)
        patch.setattr(provenance, "package_versions", functools.cache(provenance.package_versions))
        patch.setattr(os, "fsync", lambda handle: None)
        for device in (torch.cuda, torch.xpu):  # each new seed is kept, with a whole traceback, for a device to come
            if not device.is_available():
                patch.setattr(device.random, "_lazy_call", lambda *args, **kwargs: None)
        yield


@pytest.fixture
def reward_curve(monkeypatch):
    """Have the picture of a run drawn, which takes as long as a small run."""
    monkeypatch.setattr(plots, "plot_reward_curve", _PLOT_REWARD_CURVE)


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory, monkeypatch):
    """Keep caches out of the user's home, stay off the network, and leave SIGTERM to the next test as it was."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # Tiny models gain nothing from more than one, and sums come out the same every time.
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
    torch.manual_seed(0)
    keep_registries(monkeypatch)
    yield
    signal.signal(signal.SIGTERM, on_sigterm)  # a command that was interrupted ignores it, and so would child processes


@pytest.fixture
def refused(capsys):
    """Checks that a command failed with one message of one paragraph, in which the words are; returns the message."""

    def check(code, *words):
        said = capsys.readouterr().err
        assert code == 2 and "Traceback" not in said, said
        assert sum(line.startswith("error: ") for line in said.splitlines()) == 1, said
        message = " ".join(said.partition("error: ")[2].split())
        assert all(word in message for word in words), message
        return message

    return check


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    """A complete run, whose checkpoints have a critic, for tests that read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("plain")
    evaluation = {"train_evaluation__generation_kwargs": SAMPLING, "train_evaluation__save_every": 1}
    with complete_run(folder, make_config(folder, reward_fn=DENSE_REWARD, **evaluation)):
        return run_folder(folder)


@pytest.fixture
def tokenizer():
    return make_tokenizer()


@pytest.fixture(params=list(MODELS))
def model(request, tokenizer):
    return MODELS[request.param](tokenizer)
