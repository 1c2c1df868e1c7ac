"""Joining of a conversation's turns to rows: the prompt of its first turn, and as response all that followed."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from rl4dialog.functional.masks import left_aligned
from rl4dialog.functional.replies import Replies


def joined_turns(replies: Replies) -> Replies:
    """Join the turns of each conversation to as few rows as possible, without changing what any token is read after.

    A turn joins the row of the previous one if its prompt starts with the ids of the previous prompt and reply.
    Otherwise, for example if context was dropped, it begins a new row. The ids between two replies, such as the
    partner's answer, are in ``token_mask``, but not in ``response_mask``. The numbers of agent tokens keep their order.

    A row is as long as its last turn's prompt and reply together, so it exceeds no limit that these observe.

    Args:
        replies: Any rows; those of a conversation are consecutive and in order.

    Returns:
        Rows of the same conversations. ``last_value`` is that of a row's last turn.
    """
    starts_row = ~_extends_previous(replies)
    row_of_turn = starts_row.cumsum(dim=0) - 1
    first = starts_row.nonzero().squeeze(1)
    last = torch.cat([first[1:], first.new_tensor([len(replies)])]) - 1
    n_prompt = replies.prompt_mask.sum(dim=1)
    # Where a turn's response begins in the response of its row.
    offsets = n_prompt - n_prompt[first][row_of_turn]
    lengths = (offsets + replies.token_mask.sum(dim=1))[last]
    columns = torch.arange(int(lengths.max()), device=lengths.device)
    token_mask = columns < lengths[:, None]
    whole_ids, _ = _whole_rows(replies)
    places = (n_prompt[first][:, None] + columns).clamp(max=whole_ids.shape[1] - 1)
    response_ids = whole_ids[last].gather(1, places).masked_fill(~token_mask, 0)

    turns, steps = replies.response_mask.nonzero(as_tuple=True)
    at = row_of_turn[turns], offsets[turns] + steps

    def moved(tensor: Tensor) -> Tensor:
        found = tensor.new_zeros(token_mask.shape)
        found[at] = tensor[turns, steps]
        return found

    joined = {"response_ids": response_ids, "token_mask": token_mask}
    for name in (field.name for field in fields(replies)):
        tensor = getattr(replies, name)
        if tensor is None or name in joined:
            continue
        if tensor.dim() == 1:
            joined[name] = tensor[last]
        else:
            joined[name] = tensor[first] if name.startswith("prompt") else moved(tensor)
    rows = torch.arange(len(first), device=first.device)
    return Replies(**joined)[rows]  # without columns that were needed by later prompts only


def _whole_rows(replies: Replies) -> tuple[Tensor, Tensor]:
    """Prompts and responses in one piece, padded on the right, and their masks. Shapes (B, L), (B, L)."""
    ids = torch.cat([replies.prompt_ids, replies.response_ids], dim=1)
    return left_aligned(ids, torch.cat([replies.prompt_mask, replies.token_mask], dim=1))


def _extends_previous(replies: Replies) -> Tensor:
    """Whether each row belongs to the previous row's conversation, and its prompt starts with that row. Shape (B,)."""
    assert replies.episode is not None
    extends = torch.zeros(len(replies), dtype=torch.bool, device=replies.prompt_ids.device)
    whole_ids, whole_mask = _whole_rows(replies)
    prompt_ids, prompt_mask = left_aligned(replies.prompt_ids, replies.prompt_mask)
    n = min(whole_ids.shape[1], prompt_ids.shape[1])
    agrees = (whole_ids[:-1, :n] == prompt_ids[1:, :n]) & prompt_mask[1:, :n]
    fits = ~whole_mask[:-1, n:].any(dim=1)
    extends[1:] = (agrees | ~whole_mask[:-1, :n]).all(dim=1) & fits & (replies.episode[1:] == replies.episode[:-1])
    return extends
