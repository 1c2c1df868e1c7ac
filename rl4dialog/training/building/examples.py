"""Examples for supervised training and warm starts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from rl4dialog.core.config import SupervisedConfig, TextConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.training.building.texts import Texts
from rl4dialog.training.supervised.examples import ExampleSets, build_example_sets

N_HELD_OUT = 128
"""Number of val samples that tell whether a warm start memorises its data."""


def build_supervised_examples(config: SupervisedConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    """Build the training and validation examples of a supervised run."""
    return build_example_sets(
        model_config,
        texts.tokenizer,
        texts.data.samples("train"),
        val_samples=texts.data.samples("val", config.train_evaluation.max_eval_samples),
        loss_on=config.alg.loss_on,
        **_learned_lengths(config, texts),
    )


def build_warm_start_examples(config: TextConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    """Build the examples of a warm start; see :func:`build_supervised_examples`."""
    assert config.warm_start is not None
    has_val = "val" in texts.data.pools
    samples, n_samples = texts.data.samples("train"), config.warm_start.max_samples
    if n_samples is not None and n_samples < len(samples):
        samples = random.Random(derive_seed(config.seed, "warm_start")).sample(samples, n_samples)
    sets = build_example_sets(
        model_config,
        texts.tokenizer,
        samples,
        val_samples=texts.data.samples("val", N_HELD_OUT) if has_val else None,
        loss_on=config.warm_start.loss_on,
        description="Warm start",
        says_val=False,
        **_learned_lengths(config, texts),
    )
    return replace(sets, val=sets.val or None)  # samples of val can be without references


def build_auxiliary_examples(config: TextConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    """Build the examples of the supervised loss in an update, as for a warm start; see there."""
    return build_example_sets(
        model_config,
        texts.tokenizer,
        texts.data.samples("train"),
        loss_on=config.warm_start.loss_on if config.warm_start is not None else "reply",
        description="Supervised loss",
        **_learned_lengths(config, texts),
    )


def _learned_lengths(config: TextConfig, texts: Texts) -> dict[str, Any]:
    """Arguments of `build_example_sets` that select the trained part of a sample."""
    lengths = texts.lengths
    with_env = lengths.target is not None
    return {
        "end_of_turn": texts.data.turn_marker,
        "max_prompt_length": lengths.prompt if with_env else None,
        "max_reply_length": lengths.target,
        "max_length": lengths.total,
        "prompt_truncation_side": lengths.truncation_side,
        "whole_turns": not with_env,
        **conversation_arguments(config, texts),
    }


def conversation_arguments(config: TextConfig, texts: Texts) -> dict[str, Any]:
    """Arguments of `build_example_sets` for samples with a continuation; empty if there are none."""
    pool = texts.data.pools["train"]
    if not any((sample.meta_data or {}).get("continuation") for sample, _ in pool):
        return {}
    rules = ConversationRules()
    if config.env is not None:
        args = config.env.args
        rules = ConversationRules(
            max_partner_length=args.max_partner_length,
            context_turns=args.context_turns,
            end_when=args.end_when.model_dump(),
        )
    return {"frame": pool.frame(), "rules": rules}
