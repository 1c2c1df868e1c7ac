"""What a partner that is the agent itself needs to know of the run, and whether a run can have one."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.outside_partner import OutsidePartner
from rl4dialog.partners.self_play import POOL_SIZE, SelfPlayPartner, check_pool
from rl4dialog.policies.answering import answer_lengths, answer_settings
from rl4dialog.policies.models import named_model_positions
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.training.building.texts import Texts

_PLAIN_POLICIES = ("causal_lm_actor_critic_policy", "seq2seq_lm_actor_critic_policy")
_POOL = ("snapshot_every", "pool_size", "latest_share", "learns")


def plays_itself(chosen: ComponentConfig | None) -> bool:
    """Whether a partner is the agent itself."""
    if chosen is None:
        return False
    partner = PartnerRegistry.resolve(chosen.id)
    return inspect.isclass(partner) and issubclass(partner, SelfPlayPartner)


def check_self_play(config: TextConfig, chosen: ComponentConfig, where: str) -> None:
    """Check a partner that is the agent itself.

    Args:
        config: The run's config.
        chosen: The partner, with arguments of the right types.
        where: Its key in the config.
    """
    if not config.has_rollouts:
        raise ConfigError(
            f"{where}.id: {chosen.id} is not supported with alg.id: {config.alg.id}, which has no rollouts; use a "
            f"language_model as partner"
        )
    check_pool(**{name: chosen.args[name] for name in _POOL if name in chosen.args})
    if chosen.args.get("learns") == "both":
        _check_both_sides(config, chosen, where)
    if where.startswith("train_evaluation") and chosen.args.get("snapshot_every"):
        raise ConfigError(
            f"{where}.args.snapshot_every: evaluations have no copies. Remove {where} to evaluate with the initial "
            f"policy, or snapshot_every to evaluate with the current policy"
        )


def _check_both_sides(config: TextConfig, chosen: ComponentConfig, where: str) -> None:
    """Check ``learns: both``: what the partner says must be what the trained policy would say."""
    assert config.env is not None
    if chosen.args.get("generation_kwargs"):
        raise ConfigError(f"{where}.args.generation_kwargs: with learns: both, both sides sample alike; remove it")
    if where.startswith("train_evaluation"):
        raise ConfigError(f"{where}.args.learns: nothing is trained in evaluations; remove it")
    if config.policy_id not in _PLAIN_POLICIES:
        raise ConfigError(
            f"{where}.args.learns: both needs one of the policies {', '.join(_PLAIN_POLICIES)}; the partner speaks "
            f"without the mask or values of {config.policy_id}"
        )
    if config.generation.backend != "transformers":
        raise ConfigError(f"{where}.args.learns: both is not supported with generation.backend: vllm")
    if config.env.args.bootstrap_truncated:
        raise ConfigError(f"{where}.args.learns: both is not supported with env.args.bootstrap_truncated: true")


def n_weight_copies(config: TextConfig) -> tuple[int, bool]:
    """Number of copies of the trained weights that self-play keeps at most.

    Returns:
        Copies from later iterations, and whether the initial policy is kept.
    """
    assert config.env is not None
    chosen, others = config.env.args.conversation_partner, config.train_evaluation.partner
    if chosen is None or not plays_itself(chosen):
        return 0, False
    has_pool = bool(chosen.args.get("snapshot_every"))
    pool_size = chosen.args.get("pool_size") or POOL_SIZE
    return pool_size - 1 if has_pool else 0, has_pool or others is None


def self_play_arguments(
    chosen: ComponentConfig,
    config: TextConfig,
    texts: Texts,
    max_length: int,
    end_of_turn: EndOfTurn | None,
    vocab_size: int | None,
    is_evaluation: bool,
) -> dict[str, Any]:
    """Return the arguments of a partner that is the agent itself which come from the run.

    Args:
        chosen: The partner.
        config: The run's config.
        texts: The run's texts.
        max_length: Maximum number of tokens of an answer.
        end_of_turn: Detects the ends of replies, if the model is known.
        vocab_size: Number of rows of the model's embedding, if it is known.
        is_evaluation: Whether the conversations are those of evaluations.
    """
    found = texts.data.pools["train"].dialogue_format
    if found is None:
        raise ConfigError(
            f"partner {chosen.id!r} reads prompts in the format of the datapool, and {config.datapool.id!r} has none; "
            f"use a datapool of dialogues, or another partner"
        )
    kwargs = chosen.args.get("generation_kwargs") or dict(config.own_generation_block.kwargs)
    settings = answer_settings(f"partner {chosen.id!r}", kwargs)
    positions = None
    if not config.is_encoder_decoder:
        # Built-in models are built to fit.
        positions = named_model_positions(config.model_name) or texts.lengths.prompt + texts.lengths.room
    lengths = answer_lengths(
        f"partner {chosen.id!r}", config.model_name, positions, settings, texts.lengths.prompt, max_length
    )
    tokenizer = texts.tokenizer
    end = end_of_turn or EndOfTurn(tokenizer, end_of_sequence_ids(tokenizer), texts.data.turn_marker)
    dialogue_format = replace(found, context_size=None, in_conversation=True)
    return {
        "own_side": OutsidePartner(dialogue_format, end, vocab_size or len(tokenizer), *lengths),
        "generation_kwargs": kwargs,
        "is_frozen": is_evaluation and config.train_evaluation.partner is None,
        "run_seed": config.seed,
    }
