"""Streaming of one reply, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rl4dialog.policies.base import LMActorCriticPolicy

_UNFINISHED_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class PartialReply:
    """A partial reply.

    Attributes:
        text: Text to display. It is complete only when the reply is finished; until then, possible beginnings of a turn
            marker and incomplete characters are held back.
        token_ids: All token ids so far, including the one that ends the reply.
        finished: Whether the reply is complete.
        ended: Whether the policy ended the complete reply; otherwise it was cut at the length limit.
    """

    text: str
    token_ids: tuple[int, ...]
    finished: bool
    ended: bool = False


def stream_reply(
    policy: LMActorCriticPolicy, prompt_ids: list[int], seed: int | None = None, **generation_kwargs: Any
) -> Iterator[PartialReply]:
    """Stream the reply that ``policy.generate`` would sample after ``torch.manual_seed(seed)``.

    Args:
        policy: The policy.
        prompt_ids: Token ids of the prompt.
        seed: Sampling seed; ``None`` uses torch's global state.
        generation_kwargs: Settings that replace all settings of the rollouts.

    Yields:
        The reply after every token, and again when it is finished.
    """
    random = None if seed is None else torch.Generator(policy.device).manual_seed(seed)
    ids = torch.tensor([prompt_ids], device=policy.device)
    obs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}
    token_ids: tuple[int, ...] = ()
    for step in policy.stream(obs, random, **generation_kwargs):
        token_ids += (int(step.ids[0]),)
        text = policy.end_of_turn.reply_text(token_ids)
        yield PartialReply(_settled(text, policy.end_of_turn.marker), token_ids, False)
    yield _complete(policy, token_ids)


def whole_reply(
    policy: LMActorCriticPolicy, prompt_ids: list[int], seed: int | None = None, **generation_kwargs: Any
) -> PartialReply:
    """Return the reply of ``policy.generate``, for policies that search for whole replies.

    Args:
        policy: The policy.
        prompt_ids: Token ids of the prompt.
        seed: Sampling seed; torch's global state is restored afterwards. ``None`` uses this state.
        generation_kwargs: Settings that replace all settings of the rollouts.
    """
    ids = torch.tensor([prompt_ids], device=policy.device)
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        replies = policy.generate(
            {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}, **generation_kwargs
        )
    token_ids = tuple(replies.per_row("response_ids")[0].tolist())
    return _complete(policy, token_ids)


def _complete(policy: LMActorCriticPolicy, token_ids: tuple[int, ...]) -> PartialReply:
    end = policy.end_of_turn
    return PartialReply(end.reply_text(token_ids), token_ids, True, end.is_end(token_ids))


def _settled(text: str, marker: str | None) -> str:
    """The part of a text that later tokens cannot change."""
    text = text.rstrip(_UNFINISHED_CHARACTER)
    for length in range(len(marker) - 1 if marker else 0, 0, -1):
        if marker and text.endswith(marker[:length]):
            text = text[:-length]
            break
    return text.rstrip()
