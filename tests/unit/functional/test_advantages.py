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
    turn_advantages,
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


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (0.99, 1.0), (0.8, 0.0)])
def test_advantages_equal_naive_quadratic_sum(gamma, lam):
    rewards, values, mask = RNG.normal(size=(1, 7)), RNG.normal(size=(1, 7)), np.ones((1, 7), dtype=bool)
    last = np.array([0.3])
    advantages, returns = generalized_advantages(rewards, values, mask, last, gamma, lam)
    v = [*values[0], last[0]]
    deltas = [rewards[0, t] + gamma * v[t + 1] - v[t] for t in range(7)]
    naive = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, 7)) for t in range(7)]
    np.testing.assert_allclose(advantages[0], naive, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(returns, advantages + values, rtol=1e-5, atol=1e-6)
    assert advantages.dtype == returns.dtype == np.float32


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


CONVERSATIONS = [[3, 1, 4], [2], [1, 1, 1, 1, 1, 1], [5, 2]]
"""Tokens per turn."""


def conversations(lengths=CONVERSATIONS):
    """Random numbers of conversations, of which every second is bootstrapped; noise where no token is."""
    longest = max(map(sum, lengths))
    rewards, values = RNG.normal(size=(2, len(lengths), longest)).astype(np.float32)
    mask = np.arange(longest) < np.array([[sum(turns)] for turns in lengths])
    turns = RNG.integers(99, size=mask.shape)
    for row, of_turns in enumerate(lengths):
        turns[row, : sum(of_turns)] = np.repeat(np.arange(len(of_turns)), of_turns)
    last = np.where(np.arange(len(lengths)) % 2, RNG.normal(size=len(lengths)), 0.0).astype(np.float32)
    return {"rewards": rewards, "values": values, "mask": mask, "turns": turns, "last": last}


def product(factors):
    return float(np.prod(factors)) if factors else 1.0


@pytest.mark.parametrize(("turn_gamma", "turn_lambda"), [(0.9, 0.8), (1.0, 1.0), (0.5, 0.3), (0.7, 0.0)])
def test_token_credit_equals_naive_quadratic_sum(turn_gamma, turn_lambda):
    c = conversations()
    _, is_last = turn_bounds(c["turns"], c["mask"])
    gammas, lambdas = np.where(is_last, turn_gamma, 0.9), np.where(is_last, turn_lambda, 0.8)
    advantages, returns = generalized_advantages(c["rewards"], c["values"], c["mask"], c["last"], gammas, lambdas)
    for row, lengths in enumerate(CONVERSATIONS):
        n, ends = sum(lengths), np.cumsum(lengths) - 1
        steps = [(turn_gamma, turn_lambda) if t in ends else (0.9, 0.8) for t in range(n)]
        v = [*c["values"][row, :n], c["last"][row]]
        deltas = [c["rewards"][row, t] + steps[t][0] * v[t + 1] - v[t] for t in range(n)]
        decays = [gamma * lam for gamma, lam in steps]
        naive = [sum(product(decays[t:k]) * deltas[k] for k in range(t, n)) for t in range(n)]
        np.testing.assert_allclose(advantages[row, :n], naive, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(returns[row, :n], np.add(naive, v[:n]), rtol=1e-5, atol=1e-6)
        assert not advantages[row, n:].any()


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 1.0), (0.7, 0.0)])
def test_turn_credit_equals_naive_quadratic_sum(gamma, lam):
    c = conversations()
    rest = c["mask"], c["turns"], c["last"], gamma, lam
    advantages, returns = turn_advantages(c["rewards"], c["values"], *rest)
    for row, lengths in enumerate(CONVERSATIONS):
        starts = [sum(lengths[:u]) for u in range(len(lengths))]
        earned = [
            sum(c["rewards"][row, t] for t in range(start, start + n)) for start, n in zip(starts, lengths, strict=True)
        ]
        v = [*(c["values"][row, start] for start in starts), c["last"][row]]
        deltas = [earned[u] + gamma * v[u + 1] - v[u] for u in range(len(lengths))]
        naive = [sum((gamma * lam) ** (k - u) * deltas[k] for k in range(u, len(lengths))) for u in range(len(lengths))]
        n = sum(lengths)
        np.testing.assert_allclose(advantages[row, :n], np.repeat(naive, lengths), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(returns[row, :n], np.repeat(np.add(naive, v[:-1]), lengths), rtol=1e-5, atol=1e-6)
        assert not advantages[row, n:].any() and not returns[row, n:].any()


def test_turns_are_told_apart_by_their_numbers():
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    turns = np.array([[0, 0, 2, 3, 3], [1, 1, 1, 0, 0]])
    is_first, is_last = turn_bounds(turns, mask)
    assert is_first.nonzero()[1].tolist() == [0, 2, 3, 0] and is_last.nonzero()[1].tolist() == [1, 2, 4, 1]


def test_equal_factors_of_tokens_and_turns_change_no_bit():
    """The recursion with one factor for all steps, in single precision, as it is written in the paper."""
    c = conversations()
    for gamma, lam in ((0.99, 0.95), (1.0, 1.0), (0.97, 0.3)):
        factors = np.full(c["mask"].shape, gamma), np.full(c["mask"].shape, lam)
        advantages, _ = generalized_advantages(c["rewards"], c["values"], c["mask"], c["last"], *factors)
        for row, lengths in enumerate(CONVERSATIONS):
            advantage, value = np.float32(0), c["last"][row]
            for t in reversed(range(sum(lengths))):
                delta = c["rewards"][row, t] + gamma * value - c["values"][row, t]
                advantage, value = delta + gamma * lam * advantage, c["values"][row, t]
                assert advantages[row, t] == advantage and type(advantage) is np.float32


LENGTHS, TURNS = (5, 3), ((0, 0, 1, 1, 1), (0, 1, 2))


@pytest.fixture
def episodes():
    random = np.random.default_rng(0)
    mask = np.arange(5) < np.array(LENGTHS)[:, None]
    rewards, penalties, values = random.normal(size=(3, 2, 5)).astype(np.float32) * mask
    turns = np.zeros((2, 5), dtype=np.float32)
    for row, numbers in enumerate(TURNS):
        turns[row, : len(numbers)] = numbers
    scales = np.abs(rewards + penalties) + np.abs(penalties)
    return Episodes(rewards, penalties, scales, values, turns, mask, np.array([0.0, 0.5], dtype=np.float32))


def naive(of, row, gamma, gae_lambda):
    """Advantages of one episode by the double sum, with a step per token."""
    n = LENGTHS[row]
    values = [*of.values[row, :n], of.last_values[row]]
    deltas = [of.rewards[row, t] + gamma * values[t + 1] - values[t] for t in range(n)]
    return np.array([sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)])


def naive_of_turns(of, row, gamma, gae_lambda):
    """The same with a step per turn, without the KL penalty, at each token."""
    numbers = np.array(TURNS[row])
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    task = (of.rewards + of.penalties)[row, : len(numbers)]
    sums = [task[numbers == turn].sum() for turn in range(numbers.max() + 1)]
    values = [*of.values[row, starts], of.last_values[row]]
    n = len(sums)
    deltas = [sums[u] + gamma * values[u + 1] - values[u] for u in range(n)]
    found = [sum((gamma * gae_lambda) ** (k - u) * deltas[k] for k in range(u, n)) for u in range(n)]
    return np.array(found)[numbers], of.values[row, starts][numbers]


@pytest.mark.parametrize("credit", ["token", "turn"])
def test_advantages_and_targets_are_the_sums_of_their_formulas(episodes, credit):
    gamma, own = 0.9, 0.7
    found = {"token": GAE, "turn": TurnGAE}[credit](gamma, own, gamma, own)(episodes)
    for row, n in enumerate(LENGTHS):
        if credit == "token":
            advantages, values = naive(episodes, row, gamma, own), episodes.values[row, :n]
            targets, returns = (naive(episodes, row, gamma, each) + values for each in (own, 1.0))
        else:
            advantages, values = naive_of_turns(episodes, row, gamma, own)
            targets, returns = (naive_of_turns(episodes, row, gamma, each)[0] + values for each in (own, 1.0))
            advantages = advantages - episodes.penalties[row, :n]
        np.testing.assert_allclose(found.advantages[row, :n], advantages, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.targets[row, :n], targets, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.returns[row, :n], returns, rtol=1e-5, atol=1e-6)


def test_steps_after_a_turn_have_their_own_factors(episodes):
    rule = GAE(gamma=0.9, gae_lambda=0.8, turn_gamma=0.5, turn_gae_lambda=0.0)
    found = rule(episodes)
    # With lambda 0 after a turn, the last token of the first turn has the one-step temporal difference.
    of = episodes
    expected = of.rewards[0, 1] + 0.5 * of.values[0, 2] - of.values[0, 1]
    assert found.advantages[0, 1] == pytest.approx(expected, abs=1e-6)
