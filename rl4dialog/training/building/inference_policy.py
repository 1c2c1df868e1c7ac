"""A policy for use without training: generation, values and log-probabilities."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.config import OnPolicyConfig, TextConfig
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.models import embedding_rows
from rl4dialog.training.building.generation import without_beams
from rl4dialog.training.building.lengths import Lengths
from rl4dialog.training.building.policy import build_end_of_turn, own_policy_args, policy_class


def build_inference_policy(
    config: TextConfig,
    tokenizer: PreTrainedTokenizerBase,
    turn_marker: str | None,
    model: PreTrainedModel,
    lengths: Lengths,
    **changes: Any,
) -> LMActorCriticPolicy:
    """Wrap a language model in a policy with the run's generation settings.

    Args:
        config: The run's config.
        tokenizer: The model's tokenizer.
        turn_marker: Text that ends a reply in the run's data.
        model: The language model. It is not copied, so training it changes the policy.
        lengths: The run's length limits.
        changes: Policy arguments that override the run's. By default ``critic`` is ``none``, ``lora`` is not set, and
            only NLPO, whose mask may need it, has a reference.
    """
    end_of_turn = build_end_of_turn(config, tokenizer, turn_marker, model)
    anything = [Sample(0, "", [])]
    env = TextGenEnv(end_of_turn, anything, [], lengths.prompt, lengths.reply, embedding_rows(model))
    assert isinstance(env.observation_space, spaces.Dict)
    policy = policy_class(config)
    unused = {"critic": "none", "reference": "copy" if policy.maskable else "none"}
    return policy(
        env.observation_space,
        env.action_space,
        lambda _: 0.0,
        model=model,
        end_of_turn=end_of_turn,
        **{**inference_arguments(config), **unused, "precision": config.precision, **changes},
    )


def inference_arguments(config: TextConfig) -> dict[str, Any]:
    """Policy arguments that matter without training."""
    if not isinstance(config, OnPolicyConfig):
        return {"generation_kwargs": without_beams(config.own_generation_block.kwargs)}
    for_training = (
        *("critic", "optimizer_class", "optimizer_kwargs", "weight_decay"),
        *("gradient_checkpointing", "reference", "offload_reference"),
    )
    return {name: value for name, value in own_policy_args(config).items() if name not in for_training}
