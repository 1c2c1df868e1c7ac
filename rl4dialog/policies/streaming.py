"""One reply, told token by token: its text so far, and the tokens that it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rl4dialog.policies.base import LMActorCriticPolicy

_UNFINISHED_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class PartialReply:
    """A reply as far as it came.

    Attributes:
        text: What can be shown. Only that of a finished reply is sure to be the whole text: before, the beginning of a
            turn marker and of a character are held back.
        token_ids: Of all tokens so far, the one that ends the reply included.
        finished: Whether there is no more to come.
    """

    text: str
    token_ids: tuple[int, ...]
    finished: bool


def stream_reply(
    policy: LMActorCriticPolicy, prompt_ids: list[int], seed: int | None = None, **generation_kwargs: Any
) -> Iterator[PartialReply]:
    """Sample the reply that ``policy.generate`` samples after ``torch.manual_seed(seed)``.

    Args:
        policy: Replies.
        prompt_ids: Token ids of the prompt.
        seed: Of the sampling; ``None`` for torch's own state.
        generation_kwargs: Replace those of the rollouts, all of them.

    Yields:
        The reply after every token, and once more when it is finished.
    """
    random = None if seed is None else torch.Generator(policy.device).manual_seed(seed)
    ids = torch.tensor([prompt_ids], device=policy.device)
    obs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}
    token_ids: tuple[int, ...] = ()
    for step in policy.stream(obs, random, **generation_kwargs):
        token_ids += (int(step.ids[0]),)
        text = policy.end_of_turn.reply_text(token_ids)
        yield PartialReply(_settled(text, policy.end_of_turn.marker), token_ids, False)
    yield PartialReply(policy.end_of_turn.reply_text(token_ids), token_ids, True)


def _settled(text: str, marker: str | None) -> str:
    """What of a text the next token cannot take back."""
    text = text.rstrip(_UNFINISHED_CHARACTER)
    for length in range(len(marker) - 1 if marker else 0, 0, -1):
        if marker and text.endswith(marker[:length]):
            text = text[:-length]
            break
    return text.rstrip()
