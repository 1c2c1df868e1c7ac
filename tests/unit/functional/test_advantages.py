"""The credit rule: defaults are plain GAE, and each recipe is its formula, summed up naively."""

import numpy as np
import pytest
import torch

from rl4dialog.functional.advantages import (
    GAE,
    Episodes,
    TurnGAE,
    Turns,
    generalized_advantages,
    group_advantages,
    leave_one_out_advantages,
    turn_bounds,
)
from rl4dialog.functional.replies import Replies


def joined():
    """Two turns in the first row, with a word of the partner between them, and one turn in the second."""
    replies = Replies.from_ids([[7], [8, 9]], [[1, 2, 3, 4], [5]])
    replies.response_mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    replies.turn = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])
    return replies


def test_turns_are_runs_of_tokens_of_one_row_and_turn():
    turns = Turns.of(joined())
    assert len(turns) == 3
    assert turns.index.tolist() == [0, 0, 1, 2]
    assert turns.first.tolist() == [0, 2, 3] and turns.last.tolist() == [1, 2, 3]
    assert turns.lengths.tolist() == [2, 1, 1]


def test_sums_means_and_spread_numbers():
    turns, numbers = Turns.of(joined()), torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert turns.sums(numbers).tolist() == [4.0, 5.0, 7.0]
    assert turns.means(torch.stack([numbers, -numbers], dim=1)).tolist() == [[2.0, -2.0], [5.0, -5.0], [7.0, -7.0]]
    assert turns.spread(torch.tensor([10, 20, 30])).tolist() == [10, 10, 20, 30]


def test_means_have_gradients():
    numbers = torch.ones(4, requires_grad=True)
    (Turns.of(joined()).means(numbers) * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert numbers.grad is not None and numbers.grad.tolist() == [0.5, 0.5, 10.0, 100.0]


def test_leave_one_out_compares_each_with_the_mean_of_the_others():
    rewards = np.array([1.0, 4.0, 10.0])
    np.testing.assert_allclose(leave_one_out_advantages(rewards), [1 - 7, 4 - 5.5, 10 - 2.5])
    np.testing.assert_allclose(leave_one_out_advantages(rewards[:2]), [-3.0, 3.0])
    assert leave_one_out_advantages(np.array([3.0])).tolist() == [0.0]


def test_group_advantages_are_scaled_by_the_unbiased_deviation():
    rewards = np.array([1.0, 4.0, 10.0])
    np.testing.assert_allclose(group_advantages(rewards), np.array([-4, -1, 5]) / (21**0.5 + 1e-4))
    np.testing.assert_allclose(group_advantages(rewards, eps=1.0), np.array([-4, -1, 5]) / (21**0.5 + 1))
    np.testing.assert_allclose(group_advantages(rewards, scale=False), [-4, -1, 5])
    np.testing.assert_allclose(group_advantages(rewards[:2]), np.array([-1.5, 1.5]) / (4.5**0.5 + 1e-4))
    assert group_advantages(np.array([3.0])).tolist() == [0.0]


RNG = np.random.default_rng(0)
CONVERSATIONS = [[3, 1, 4], [2], [1, 1, 1, 1, 1, 1], [5, 2]]
"""Tokens per turn."""


def conversations():
    """Random numbers of conversations, of which every second is bootstrapped; noise where no token is."""
    longest = max(map(sum, CONVERSATIONS))
    mask = np.arange(longest) < np.array([[sum(turns)] for turns in CONVERSATIONS])
    rewards, penalties, values = RNG.normal(size=(3, *mask.shape)).astype(np.float32)
    turns = RNG.integers(99, size=mask.shape)
    for row, lengths in enumerate(CONVERSATIONS):
        turns[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    last = np.where(np.arange(len(mask)) % 2, RNG.normal(size=len(mask)), 0.0).astype(np.float32)
    return Episodes(rewards, penalties * mask, np.abs(rewards), values, turns, mask, last)


def naive(rewards, values, gammas, lambdas):
    """Advantages by the double sum; there is one value more than rewards."""
    n, decays = len(rewards), np.multiply(gammas, lambdas)
    deltas = [rewards[t] + gammas[t] * values[t + 1] - values[t] for t in range(n)]
    return np.array([sum(np.prod(decays[t:k]) * deltas[k] for k in range(t, n)) for t in range(n)])


def assert_credit(found, row, **expected_numbers):
    """Credit of one episode, and none after its end."""
    for name, expected in expected_numbers.items():
        numbers = getattr(found, name)
        np.testing.assert_allclose(numbers[row, : len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert numbers.dtype == np.float32 and not numbers[row, len(expected) :].any()


FACTORS = pytest.mark.parametrize(("turn_gamma", "turn_lambda"), [(0.9, 0.8), (1.0, 1.0), (0.5, 0.3), (0.7, 0.0)])


@FACTORS
def test_credit_of_tokens_equals_naive_sums(turn_gamma, turn_lambda):
    of = conversations()
    found = GAE(0.9, 0.8, turn_gamma, turn_lambda)(of)
    for row, lengths in enumerate(CONVERSATIONS):
        n = sum(lengths)
        is_last = np.isin(np.arange(n), np.cumsum(lengths) - 1)
        numbers = of.rewards[row, :n], [*of.values[row, :n], of.last_values[row]], np.where(is_last, turn_gamma, 0.9)
        advantages = naive(*numbers, np.where(is_last, turn_lambda, 0.8))
        values = of.values[row, :n]
        returns = naive(*numbers, np.ones(n)) + values
        assert_credit(found, row, advantages=advantages, targets=advantages + values, returns=returns)


@FACTORS
def test_credit_of_turns_equals_naive_sums_less_each_tokens_penalty(turn_gamma, turn_lambda):
    of = conversations()
    found = TurnGAE(turn_gamma=turn_gamma, turn_gae_lambda=turn_lambda)(of)
    for row, lengths in enumerate(CONVERSATIONS):
        n, n_turns, starts = sum(lengths), len(lengths), np.cumsum([0, *lengths[:-1]])
        task = np.add.reduceat((of.rewards + of.penalties)[row, :n], starts)
        values = of.values[row, starts]
        numbers = task, [*values, of.last_values[row]], np.full(n_turns, turn_gamma)
        own, summed = (naive(*numbers, np.full(n_turns, factor)) for factor in (turn_lambda, 1.0))
        shared, targets, returns = (np.repeat(each, lengths) for each in (own, own + values, summed + values))
        assert_credit(found, row, advantages=shared - of.penalties[row, :n], targets=targets, returns=returns)


def test_turns_are_told_apart_by_their_numbers():
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    turns = np.array([[0, 0, 2, 3, 3], [1, 1, 1, 0, 0]])
    is_first, is_last = turn_bounds(turns, mask)
    assert is_first.nonzero()[1].tolist() == [0, 2, 3, 0] and is_last.nonzero()[1].tolist() == [1, 2, 4, 1]


def test_equal_factors_of_tokens_and_turns_change_no_bit():
    """The recursion with one factor for all steps, in single precision, as it is written in the paper."""
    of = conversations()
    for gamma, lam in ((0.99, 0.95), (1.0, 1.0), (0.97, 0.3)):
        factors = np.full(of.mask.shape, gamma), np.full(of.mask.shape, lam)
        advantages, _ = generalized_advantages(of.rewards, of.values, of.mask, of.last_values, *factors)
        for row, lengths in enumerate(CONVERSATIONS):
            advantage, value = np.float32(0), of.last_values[row]
            for t in reversed(range(sum(lengths))):
                delta = of.rewards[row, t] + gamma * value - of.values[row, t]
                advantage, value = delta + gamma * lam * advantage, of.values[row, t]
                assert advantages[row, t] == advantage and type(advantage) is np.float32
