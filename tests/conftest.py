"""What every test gets: a cache of its own, no network, and a fixed seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import MODELS, make_tokenizer
from transformers import PreTrainedTokenizerFast


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep caches out of the user's home, and stay off the network."""
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    torch.set_num_threads(1)  # tiny models gain nothing from more, and sums come out the same every time
    torch.manual_seed(0)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Any:
    return MODELS[request.param](tokenizer)
