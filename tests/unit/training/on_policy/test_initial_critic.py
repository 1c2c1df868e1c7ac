"""The critic of another run as the initial one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import complete_run, make_config, run_folder
from safetensors.torch import load_file

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.training.on_policy.trainee import OnPolicyTrainee

CRITIC = {"train_evaluation__n_iters": 1, "alg__args__critic_warmup_iters": 1, "alg__policy__args__critic": "shared"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that trains only the critic."""
    folder = tmp_path_factory.mktemp("critic")
    with complete_run(folder, make_config(folder, **CRITIC)):
        yield folder


def trainee(folder: Path, critic_from: Path, **overrides: Any) -> OnPolicyTrainee:
    settings = {"alg__policy__args__critic": "shared", "alg__policy__args__critic_from": str(critic_from), **overrides}
    config: Any = parse_config(make_config(folder, **settings), "test")
    return OnPolicyTrainee(config, None)


def test_run_starts_with_the_critic_of_the_other(folder: Path) -> None:
    found = trainee(folder, run_folder(folder))
    (saved,) = [load_file(path) for path in (run_folder(folder) / "checkpoints").glob("*_000001/critic.safetensors")]
    head = found.algorithm.policy._value_head.output
    assert saved["_value_head.weight"].abs().max() > 0
    assert torch.equal(head.weight, saved["_value_head.weight"]) and torch.equal(head.bias, saved["_value_head.bias"])
    found.close()


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"seed": 1}, ConfigError, "began with another model. A shared critic is only a head"),
        ({"tokenizer__vocab_size": 280}, ConfigError, "was trained with another tokenizer"),
        ({"alg__policy__args__critic": "separate"}, ModelError, "does not fit a policy with critic 'separate'"),
    ],
)
def test_critic_that_does_not_fit_is_refused(folder: Path, overrides: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        trainee(folder, run_folder(folder), **overrides)


def test_folder_without_a_checkpoint_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"critic_from: .* has no checkpoint; name the folder of a run"):
        trainee(folder, folder / "nothing")
