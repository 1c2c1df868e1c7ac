"""Combinations of arguments that a run refuses before it loads anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no reply ends": (
        {"alg__args__mask_truncated": True, "env__args__terminate_on_eos": False},
        r"mask_truncated leaves out all replies with env\.args\.terminate_on_eos: false",
    ),
    "critic of an algorithm without": (
        {"alg__id": "rloo", "env__n_envs": 4, "alg__policy__args__critic_from": "runs/critic"},
        r"critic_from has no effect: alg\.id: rloo has no critic",
    ),
    "policy that is never trained": (
        {"alg__args__critic_warmup_iters": 4, "train_evaluation__n_iters": 3},
        r"critic_warmup_iters is 4, more than the 3 iterations .*so the policy is never trained",
    ),
    "correction of greedy replies": (
        {"alg__args__importance_correction": "token", "alg__policy__args__generation_kwargs": {"do_sample": False}},
        r"importance_correction needs alg\.policy\.args\.generation_kwargs\.do_sample: true",
    ),
    "correction of the policy's own samples": (
        {"alg__args__importance_correction": "sequence"},
        r"importance_correction has no effect: without filters such as alg\.policy\.args\.generation_kwargs\.top_k",
    ),
    "cap without correction": (
        {"alg__args__correction_cap": 3.0},
        r"alg\.args\.correction_cap has no effect without alg\.args\.importance_correction",
    ),
    "references without weight": (
        {"alg__args__supervised_batch_size": 4},
        r"supervised_batch_size has no effect without alg\.args\.supervised_coef",
    ),
    "average without decay": (
        {"alg__policy__args__reference": "ema"},
        r"alg\.policy\.args\.reference: ema needs reference_decay, such as 0\.99",
    ),
    "decay without average": (
        {"alg__policy__args__reference_decay": 0.9},
        r"reference_decay has no effect without reference: ema",
    ),
    "moving reference without penalty": (
        {
            "alg__policy__args__reference": "reset",
            "alg__policy__args__reference_every": 2,
            "alg__kl_div": {"coeff": 0.0},
        },
        r"reference: reset has no effect on training with alg\.kl_div\.coeff: 0",
    ),
    "penalty without reference": (
        {"alg__policy__args__reference": "none"},
        r"coeff is 0\.1, but alg\.policy\.args\.reference is none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_contradict_each_other_are_refused(name: str, tmp_path: Path) -> None:
    overrides, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        check_components(parse_config(make_config(tmp_path, **overrides), "test"))


@pytest.mark.parametrize(
    "overrides",
    [
        {"alg__args__critic_warmup_iters": 3, "train_evaluation__n_iters": 3},  # trains only the critic
        {"alg__args__critic_warmup_iters": 3, "train_evaluation__n_iters": 0},  # only evaluates
    ],
)
def test_arguments_that_only_look_alike_are_accepted(overrides: dict[str, Any], tmp_path: Path) -> None:
    check_components(parse_config(make_config(tmp_path, **overrides), "test"))


RLOO: dict[str, Any] = {"alg__id": "rloo", "env__n_envs": 4}


@pytest.mark.parametrize(
    ("overrides", "notes"),
    [
        ({**RLOO, "alg__policy__args__critic": "shared"}, ["alg.policy.args.critic"]),
        ({**RLOO, "alg__policy__args__critic": "none"}, []),
        ({"alg__kl_div": {"coeff": 0.0, "target_kl": 0.1}}, ["alg.kl_div.target_kl"]),
        ({"alg__kl_div": {"coeff": 0.1, "target_kl": 0.1}}, []),
    ],
)
def test_key_that_another_setting_disables_is_noted_once(
    overrides: dict[str, Any], notes: list[str], tmp_path: Path
) -> None:
    config = parse_config(make_config(tmp_path, **overrides), "test")
    for _ in range(2):
        check_components(config)
    found = [note for note in config.warnings if "critic has no effect" in note or "target_kl has no effect" in note]
    assert [note.split()[0] for note in found] == notes
