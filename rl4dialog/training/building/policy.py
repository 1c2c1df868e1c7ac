"""Class, arguments and end-of-turn detection of a run's policy."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import AlgorithmRegistry, PolicyRegistry
from rl4dialog.core.config import OnPolicyConfig, TextConfig
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids


def policy_class(config: TextConfig) -> type[LMActorCriticPolicy]:
    """Class of the run's policy. For a supervised run, a policy that can generate with its model."""
    return PolicyRegistry.resolve(config.policy_id)  # type: ignore[no-any-return]


def own_policy_args(config: OnPolicyConfig) -> dict[str, Any]:
    """Policy arguments, without those of the model and those without effect."""
    args = config.alg.policy.args.model_dump()
    for name in ("model_name", "apply_model_parallel", "prompt_truncation_side"):
        args.pop(name, None)
    return args


def all_arguments(config: OnPolicyConfig) -> dict[str, Any]:
    """Arguments of an RL run's policy and algorithm, with defaults filled in."""
    policy, algorithm = PolicyRegistry.defaults(config.alg.policy.id), AlgorithmRegistry.defaults(config.alg.id)
    return {**policy, **(config.alg.policy.args.model_extra or {}), **algorithm, **config.alg.args}


def build_end_of_turn(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, turn_marker: str | None, model: PreTrainedModel
) -> EndOfTurn:
    """Build the detection of reply ends: all end-of-sequence ids, and the turn marker of the dialogue format."""
    if config.env is not None and not config.env.args.terminate_on_eos:
        return EndOfTurn(tokenizer, ())
    ids = end_of_sequence_ids(tokenizer, model.config, model.generation_config)
    return EndOfTurn(tokenizer, ids, turn_marker)
