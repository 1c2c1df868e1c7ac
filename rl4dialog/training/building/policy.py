"""The policy of a run: its class, its arguments, where its replies end."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import AlgorithmRegistry, PolicyRegistry
from rl4dialog.core.config import OnPolicyConfig, RunConfig
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids


def policy_class(config: RunConfig) -> type[LMActorCriticPolicy]:
    """The class of the run's policy; of a supervised run, the one that generates with its model."""
    return PolicyRegistry.resolve(config.policy_id)  # type: ignore[no-any-return]


def own_policy_args(config: OnPolicyConfig) -> dict[str, Any]:
    """The policy's own arguments, without those for its model and those without effect."""
    args = config.alg.policy.args.model_dump()
    for name in ("model_name", "apply_model_parallel", "prompt_truncation_side"):
        args.pop(name, None)
    return args


def all_arguments(config: OnPolicyConfig) -> dict[str, Any]:
    """Arguments of an RL run's policy and algorithm, with the defaults of those that the config leaves out."""
    policy, algorithm = PolicyRegistry.defaults(config.alg.policy.id), AlgorithmRegistry.defaults(config.alg.id)
    return {**policy, **(config.alg.policy.args.model_extra or {}), **algorithm, **config.alg.args}


def build_end_of_turn(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, turn_marker: str | None, model: PreTrainedModel
) -> EndOfTurn:
    """Where replies end: all end-of-sequence ids, and the dialogue format's marker."""
    if config.env is not None and not config.env.args.terminate_on_eos:
        return EndOfTurn(tokenizer, ())
    ids = end_of_sequence_ids(tokenizer, model.config, model.generation_config)
    return EndOfTurn(tokenizer, ids, turn_marker)
