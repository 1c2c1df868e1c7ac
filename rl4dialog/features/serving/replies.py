"""Replies for people: as a stream, and with numbers of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from rl4dialog.policies.base import LMActorCriticPolicy

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


@dataclass
class TokenDetails:
    """Values per token. Each list has the length of ``texts``, or is ``None`` if it is not available."""

    texts: list[str]
    log_probs: list[float]  # under the policy's own distribution, in nats
    values: list[float] | None = None  # the critic's, before each token
    # Log-probability minus that under the reference, or, if values guide the policy, under its language model.
    kl: list[float] | None = None
    advantages: list[float] | None = None  # Q(s, a) - V(s) of each token, by which a policy is guided
    missing: dict[str, str] = field(default_factory=dict)  # reason for each None, by name of the list
