"""What surrounds transformers' `Trainer`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import make_gpt2

from rl4dialog.training.trainer_support import ProgressBar, unchanged


def test_bar_shows_description_rate_and_loss(capfd: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("Warm start")
    bar.on_train_begin(None, SimpleNamespace(max_steps=4), None)
    bar.on_log(None, None, None, logs={"loss": 1.23456})
    bar.on_step_end(None, SimpleNamespace(global_step=4), None)
    bar.close()
    last = capfd.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
    assert last.startswith("Warm start: 100%")
    assert "4/4" in last and "step/s" in last and "loss 1.235" in last


def test_bar_that_never_began_can_be_closed() -> None:
    bar = ProgressBar("x")
    bar.on_log(None, None, None, logs={"loss": 1.0})
    bar.on_step_end(None, SimpleNamespace(global_step=1), None)
    bar.close()


@pytest.mark.parametrize("training", [True, False])
def test_unchanged_restores_mode_and_generator_also_after_an_error(tokenizer: Any, training: bool) -> None:
    model = make_gpt2(tokenizer).train(training)
    state = torch.random.get_rng_state()
    with pytest.raises(KeyError), unchanged(model):
        torch.manual_seed(5)
        model.train(not training)
        model.config.use_cache = False
        raise KeyError
    assert model.training == training
    assert model.config.use_cache is True
    assert torch.equal(torch.random.get_rng_state(), state)
