"""Numbers of tokens as numbers of turns."""

from __future__ import annotations

import torch

from rl4dialog.functional.advantages import Turns, turn_states
from rl4dialog.functional.replies import Replies


def joined() -> Replies:
    """Two turns in the first row, with a word of the partner between them, and one turn in the second."""
    replies = Replies.from_ids([[7], [8, 9]], [[1, 2, 3, 4], [5]])
    replies.response_mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    replies.turn = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])
    return replies


def test_turns_are_runs_of_tokens_of_one_row_and_turn() -> None:
    turns = Turns.of(joined())
    assert len(turns) == 3
    assert turns.index.tolist() == [0, 0, 1, 2]
    assert turns.first.tolist() == [0, 2, 3] and turns.last.tolist() == [1, 2, 3]
    assert turns.lengths.tolist() == [2, 1, 1]


def test_sums_means_and_spread_numbers() -> None:
    turns, numbers = Turns.of(joined()), torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert turns.sums(numbers).tolist() == [4.0, 5.0, 7.0]
    assert turns.means(torch.stack([numbers, -numbers], dim=1)).tolist() == [[2.0, -2.0], [5.0, -5.0], [7.0, -7.0]]
    assert turns.spread(torch.tensor([10, 20, 30])).tolist() == [10, 10, 20, 30]


def test_means_have_gradients() -> None:
    numbers = torch.ones(4, requires_grad=True)
    (Turns.of(joined()).means(numbers) * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert numbers.grad is not None and numbers.grad.tolist() == [0.5, 0.5, 10.0, 100.0]


def test_state_of_a_turn_is_all_that_was_read_before_it() -> None:
    replies = joined()
    assert turn_states(replies, Turns.of(replies)) == [[7], [7, 1, 2, 3], [8, 9]]
