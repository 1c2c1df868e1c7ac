"""Replies outside of training: to a history of a conversation, as a stream, and with limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_UNFINISHED_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class PartialReply:
    """A partial reply."""

    text: str  # until it is finished, without possible beginnings of a turn marker and incomplete characters
    token_ids: tuple[int, ...]  # all so far, including the one that ends it
    finished: bool
    ended: bool = False  # whether the policy ended the complete reply; otherwise it was cut at the length limit


def stream_reply(
    policy: LMActorCriticPolicy, prompt_ids: list[int], seed: int | None = None, **generation_kwargs: Any
) -> Iterator[PartialReply]:
    """The reply that ``policy.generate`` samples after ``torch.manual_seed(seed)``, after every token and finished."""
    random = None if seed is None else torch.Generator(policy.device).manual_seed(seed)
    ids = torch.tensor([prompt_ids], device=policy.device)
    obs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}
    said: tuple[int, ...] = ()
    end = policy.end_of_turn
    for step in policy.stream(obs, random, **generation_kwargs):
        said += (int(step.ids[0]),)
        yield PartialReply(_settled(end.reply_text(said), end.marker or ""), said, False)
    yield PartialReply(end.reply_text(said), said, True, end.is_end(said))


def _settled(text: str, marker: str) -> str:
    """The part of a text that later tokens cannot change."""
    text = text.rstrip(_UNFINISHED_CHARACTER)
    begun = next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)
    return text[: len(text) - begun].rstrip()


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
