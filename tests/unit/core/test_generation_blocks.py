"""Which of a config's generation_kwargs blocks holds for what, and where replies end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.core.config import RunConfig, parse_config
from rl4dialog.core.generation_blocks import (
    GenerationBlock,
    evaluation_block,
    evaluation_reply_limit,
    generation_blocks,
    reply_limit,
)

EVALUATION, POLICY, ALG = (
    "train_evaluation.generation_kwargs",
    "alg.policy.args.generation_kwargs",
    "alg.generation_kwargs",
)


def make(tmp_path: Path, **overrides: Any) -> RunConfig:
    """An RL config whose replies end after 10 tokens, unless overrides say otherwise."""
    return parse_config(make_config(tmp_path, **overrides), "test")


def make_supervised(tmp_path: Path, with_env: bool = False, model_type: str = "causal", **overrides: Any) -> RunConfig:
    config = make_config(tmp_path)
    alg = {"id": "supervised", "model_type": model_type, "model_name": "builtin/tiny-gpt2", "training_args": {}}
    config["alg"] = {**alg, "generation_kwargs": overrides.pop("alg_kwargs", None)}
    config["train_evaluation"].update(overrides)
    if not with_env:
        del config["env"]
    return parse_config(config, "test")


def test_blocks_are_the_evaluations_and_the_algorithms(tmp_path: Path) -> None:
    config = make(tmp_path, alg__policy__args__generation_kwargs={"top_k": 3})
    assert generation_blocks(config) == [GenerationBlock(EVALUATION, {}), GenerationBlock(POLICY, {"top_k": 3})]
    assert [block.where for block in generation_blocks(make_supervised(tmp_path))] == [EVALUATION, ALG]


@pytest.mark.parametrize(
    ("of_evaluation", "of_policy", "expected"),
    [
        (None, {"top_k": 3}, GenerationBlock(POLICY, {"top_k": 3})),
        ({}, {"top_k": 3}, GenerationBlock(POLICY, {"top_k": 3})),
        ({"top_p": 0.5}, {"top_k": 3}, GenerationBlock(EVALUATION, {"top_p": 0.5})),
        (None, None, GenerationBlock(POLICY, {})),
    ],
)
def test_evaluations_decode_by_the_first_block_that_says_anything(
    tmp_path: Path, of_evaluation: Any, of_policy: Any, expected: GenerationBlock
) -> None:
    blocks = {"train_evaluation__generation_kwargs": of_evaluation, "alg__policy__args__generation_kwargs": of_policy}
    assert evaluation_block(make(tmp_path, **blocks)) == expected


@pytest.mark.parametrize(
    ("max_new_tokens", "expected"), [(None, 10), (3, 3), (80, 10), ("abc", 10), ([3], 10), (True, 10)]
)
def test_reply_ends_with_the_episode_or_before(tmp_path: Path, max_new_tokens: Any, expected: int) -> None:
    rollouts = {"max_new_tokens": max_new_tokens}
    of_evaluations = {"max_new_tokens": 2}
    config = make(
        tmp_path, alg__policy__args__generation_kwargs=rollouts, train_evaluation__generation_kwargs=of_evaluations
    )
    assert reply_limit(config) == expected
    assert reply_limit(make_supervised(tmp_path, with_env=True, alg_kwargs=rollouts)) == expected


@pytest.mark.parametrize(
    ("model_type", "kwargs", "given", "limit"),
    [
        ("causal", {}, None, 32),
        ("causal", {"max_new_tokens": 3}, 3, 3),
        ("causal", {"max_length": 7}, None, 32),
        ("seq2seq", {"max_length": 7}, 6, 6),
        ("seq2seq", {"max_length": 1}, 1, 1),
        ("seq2seq", {"max_length": 7, "max_new_tokens": 3}, 3, 3),
    ],
)
def test_reply_of_a_run_without_environment_ends_as_evaluations_say(
    tmp_path: Path, model_type: str, kwargs: Any, given: int | None, limit: int
) -> None:
    config = make_supervised(tmp_path, model_type=model_type, alg_kwargs=kwargs)
    assert (evaluation_reply_limit(config), reply_limit(config)) == (given, limit)
    config = make_supervised(tmp_path, alg_kwargs={"max_new_tokens": 9}, generation_kwargs={"max_new_tokens": 3})
    assert reply_limit(config) == 3
