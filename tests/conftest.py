"""What every test gets: a cache of its own, no network, a fixed seed, and the registries as they came."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import MODELS, make_tokenizer
from transformers import PreTrainedTokenizerFast

from rl4dialog import catalog
from rl4dialog.core.registry import Registry


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep caches out of the user's home, and stay off the network."""
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    torch.set_num_threads(1)  # tiny models gain nothing from more, and sums come out the same every time
    torch.manual_seed(0)
    for registry in (value for value in vars(catalog).values() if isinstance(value, Registry)):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))  # what a test registers goes with it


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Any:
    return MODELS[request.param](tokenizer)
