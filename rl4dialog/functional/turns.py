"""Turns of replies: numbers of the agent's tokens as numbers of its turns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl4dialog.functional.replies import Replies


@dataclass(frozen=True)
class Turns:
    """The U turns of the N agent tokens of replies; tokens of a turn are consecutive.

    Attributes:
        index: Turn of each token, from 0. Shape (N,).
        first: First token of each turn. Shape (U,).
        last: Last token of each turn. Shape (U,).
    """

    index: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, replies: Replies) -> Turns:
        """Find the turns: one per row, or several where ``turn`` differs within a row."""
        index = replies.token_replies()
        differs = index[1:] != index[:-1]
        first = torch.nn.functional.pad(differs, (1, 0), value=True).nonzero().squeeze(1)
        last = torch.nn.functional.pad(differs, (0, 1), value=True).nonzero().squeeze(1)
        return cls(index, first, last)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each turn. Shape (U,)."""
        return self.last - self.first + 1

    def sums(self, numbers: Tensor) -> Tensor:
        """Sum of each turn's numbers. Shape (N, ...) -> (U, ...)."""
        return torch.segment_reduce(numbers.float(), "sum", lengths=self.lengths)

    def means(self, numbers: Tensor) -> Tensor:
        """Mean of each turn's numbers. Shape (N, ...) -> (U, ...)."""
        return torch.segment_reduce(numbers.float(), "mean", lengths=self.lengths)

    def spread(self, numbers: Tensor) -> Tensor:
        """Number of each token's turn. Shape (U, ...) -> (N, ...)."""
        return numbers[self.index]


def turn_states(replies: Replies, turns: Turns) -> list[list[int]]:
    """Token ids that the agent has read before each turn, from the start of the row. Length U."""
    rows, steps = (place[turns.first].tolist() for place in replies.response_mask.nonzero(as_tuple=True))
    prompts = [ids[mask].tolist() for ids, mask in zip(replies.prompt_ids, replies.prompt_mask, strict=True)]
    return [[*prompts[row], *replies.response_ids[row, :step].tolist()] for row, step in zip(rows, steps, strict=True)]


def turn_replies(replies: Replies, turns: Turns) -> list[list[int]]:
    """Token ids of each turn. Length U."""
    return [ids.tolist() for ids in replies.flat("response_ids").split(turns.lengths.tolist())]


def turn_numbers(replies: Replies, turns: Turns) -> list[tuple[int, int]]:
    """Number of each turn's conversation, and its own number in it. Length U."""
    assert replies.episode is not None
    rows = replies.response_mask.nonzero()[turns.first, 0]
    numbers = replies.flat("turn")[turns.first]
    return list(zip(replies.episode[rows].tolist(), numbers.tolist(), strict=True))
