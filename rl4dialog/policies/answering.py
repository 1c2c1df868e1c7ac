"""Replies outside of training: to a history of a conversation, and with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from transformers import PreTrainedModel

from rl4dialog.catalog import PolicyRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.policies.models import embedding_rows
from rl4dialog.text.end_of_turn import EndOfTurn


def answering_class(is_encoder_decoder: bool) -> type[LMActorCriticPolicy]:
    """Class of the policies that answer with a language model of this kind."""
    name = "seq2seq_lm_actor_critic_policy" if is_encoder_decoder else "causal_lm_actor_critic_policy"
    return PolicyRegistry.resolve(name)


def answering_policy(
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    max_prompt_length: int,
    max_length: int,
    generation_kwargs: Mapping[str, Any] | None,
    **kwargs: Any,
) -> LMActorCriticPolicy:
    """A language model, which is not copied, in a policy without critic and reference."""
    n_rows = embedding_rows(model)
    sizes = {"prompt_ids": max_prompt_length, "context_ids": max_length}
    space = spaces.Dict({name: spaces.Box(0, n_rows - 1, (size,), np.int64) for name, size in sizes.items()})
    return answering_class(model.config.is_encoder_decoder)(
        space,
        spaces.Discrete(n_rows),
        lambda _: 0.0,
        model=model,
        end_of_turn=end_of_turn,
        critic="none",
        reference="none",
        generation_kwargs=dict(generation_kwargs or {}),
        **kwargs,
    )


def sampled_replies(policy: LMActorCriticPolicy, observations: Mapping[str, np.ndarray]) -> Replies:
    """An utterance for each prompt; these are padded on the left to any length. Shape (n, L)."""
    return policy.generate({name: torch.as_tensor(array, device=policy.device) for name, array in observations.items()})


def sampled_answers(policy: LMActorCriticPolicy, observations: Mapping[str, np.ndarray]) -> list[Sequence[int]]:
    """Token ids of :func:`sampled_replies`."""
    return [ids.tolist() for ids in sampled_replies(policy, observations).per_row("response_ids")]


def answer_settings(who: str, generation_kwargs: Mapping[str, Any] | None) -> GenerationSettings:
    """Check the sampling settings of a speaker."""
    return GenerationSettings.from_kwargs(generation_kwargs, f"{who}: generation_kwargs", NOT_IN_CONVERSATIONS)


def answer_lengths(
    who: str,
    model_name: str,
    positions: int | None,
    settings: GenerationSettings,
    max_prompt_length: int,
    max_length: int,
    key: str = "env.args.max_partner_length",
) -> tuple[int, int]:
    """Maximum lengths of a speaker's prompts and utterances, given its model's ``positions``, if they are limited."""
    max_length = min(settings.max_new_tokens or max_length, max_length)
    if positions is None:
        return max_prompt_length, max_length
    if max_length >= positions:
        problem = f"{who} answers with up to {max_length} tokens, but {model_name!r} has only {positions} positions"
        raise ConfigError(f"{problem}; lower {key}")
    return min(max_prompt_length, positions - max_length), max_length
