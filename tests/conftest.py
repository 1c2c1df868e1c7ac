"""What every test gets: a cache of its own, no network, a fixed seed, and the registries as they came."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.logging
import pytest
import torch
from hypothesis import HealthCheck, settings
from runs import DENSE_REWARD, SAMPLING, complete_run, keep_registries, make_config, run_folder
from tiny import MODELS, make_tokenizer
from transformers import PreTrainedTokenizerFast

from rl4dialog.runs import plots

# Fuzzing: the same few examples every time, or with --hypothesis-profile=long a thousand new ones.
_FUZZ = settings(deadline=20_000, suppress_health_check=list(HealthCheck), database=None)
settings.register_profile("short", _FUZZ, max_examples=100, derandomize=True)
settings.register_profile("long", _FUZZ, max_examples=1000)
settings.load_profile("short")

# rouge_score's logging would write to what pytest captures, and close it when a web server sets up its own logging.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

_PLOT_REWARD_CURVE = plots.plot_reward_curve


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the record of what was trained here out of the user's home, and draw no curves, for whole modules, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        patch.setattr(plots, "plot_reward_curve", lambda *args: None)
        yield


@pytest.fixture
def reward_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the picture of a run drawn, which takes as long as a small run."""
    monkeypatch.setattr(plots, "plot_reward_curve", _PLOT_REWARD_CURVE)


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep caches out of the user's home, and stay off the network."""
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # Tiny models gain nothing from more than one, and sums come out the same every time.
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
    torch.manual_seed(0)
    keep_registries(monkeypatch)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run, whose checkpoints have a critic, for tests that read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("plain")
    evaluation = {"train_evaluation__generation_kwargs": SAMPLING, "train_evaluation__save_every": 1}
    with complete_run(folder, make_config(folder, reward_fn=DENSE_REWARD, **evaluation)):
        return run_folder(folder)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Any:
    return MODELS[request.param](tokenizer)
