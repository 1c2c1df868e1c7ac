import numpy as np
import pytest

from rl4dialog.functional.advantages import generalized_advantages, group_advantages, leave_one_out_advantages

RNG = np.random.default_rng(0)


def one_episode(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return RNG.normal(size=(1, n)), RNG.normal(size=(1, n)), np.ones((1, n), dtype=bool)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (0.99, 1.0), (0.8, 0.0)])
def test_advantages_equal_naive_quadratic_sum(gamma: float, lam: float) -> None:
    rewards, values, mask = one_episode(7)
    last = np.array([0.3])
    advantages, returns = generalized_advantages(rewards, values, mask, last, gamma, lam)
    v = [*values[0], last[0]]
    deltas = [rewards[0, t] + gamma * v[t + 1] - v[t] for t in range(7)]
    naive = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, 7)) for t in range(7)]
    np.testing.assert_allclose(advantages[0], naive, rtol=1e-5)
    np.testing.assert_allclose(returns, advantages + values, rtol=1e-5)


def test_lambda_one_gives_monte_carlo_returns() -> None:
    rewards, values, mask = one_episode(6)
    _, returns = generalized_advantages(rewards, values, mask, np.zeros(1), 0.9, 1.0)
    monte_carlo = [sum(0.9 ** (k - t) * rewards[0, k] for k in range(t, 6)) for t in range(6)]
    np.testing.assert_allclose(returns[0], monte_carlo, rtol=1e-5)


def test_lambda_zero_gives_one_step_difference() -> None:
    rewards, values, mask = one_episode(6)
    advantages, _ = generalized_advantages(rewards, values, mask, np.zeros(1), 0.9, 0.0)
    next_values = np.append(values[0, 1:], 0.0)
    np.testing.assert_allclose(advantages[0], rewards[0] + 0.9 * next_values - values[0], rtol=1e-5)


def test_episode_shorter_than_the_longest_is_bootstrapped_from_its_own_last_token() -> None:
    """A short episode beside a long one is what it is alone, value after its end included."""
    rewards, values = RNG.normal(size=(2, 5)), RNG.normal(size=(2, 5))
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    last = np.array([0.4, -2.0])
    both, returns = generalized_advantages(rewards, values, mask, last, 0.9, 0.8)
    alone, alone_returns = generalized_advantages(rewards[1:, :2], values[1:, :2], mask[1:, :2], last[1:], 0.9, 0.8)
    np.testing.assert_allclose(both[1, :2], alone[0], rtol=1e-6)
    np.testing.assert_allclose(returns[1, :2], alone_returns[0], rtol=1e-6)
    np.testing.assert_allclose(both[1, 1], rewards[1, 1] + 0.9 * -2.0 - values[1, 1], rtol=1e-6)


def test_nothing_leaks_from_behind_an_episodes_end() -> None:
    rewards, values, _ = RNG.normal(size=(2, 5)), RNG.normal(size=(2, 5)), None
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    alone, _ = generalized_advantages(rewards[1:, :2], values[1:, :2], mask[1:, :2], np.zeros(1), 0.9, 0.9)
    padded, _ = generalized_advantages(rewards, values, mask, np.zeros(2), 0.9, 0.9)
    np.testing.assert_allclose(padded[1, :2], alone[0], rtol=1e-6)
    assert (padded[1, 2:] == 0).all()
    rewards[1, 2:] = 1e9
    again, _ = generalized_advantages(rewards, values, mask, np.zeros(2), 0.9, 0.9)
    np.testing.assert_array_equal(padded, again)


def test_leave_one_out_compares_each_with_the_mean_of_the_others() -> None:
    rewards = np.array([1.0, 4.0, 10.0])
    np.testing.assert_allclose(leave_one_out_advantages(rewards), [1 - 7, 4 - 5.5, 10 - 2.5])
    np.testing.assert_allclose(leave_one_out_advantages(rewards[:2]), [-3.0, 3.0])
    assert leave_one_out_advantages(np.array([3.0])).tolist() == [0.0]


def test_group_advantages_are_scaled_by_the_unbiased_deviation() -> None:
    rewards = np.array([1.0, 4.0, 10.0])
    np.testing.assert_allclose(group_advantages(rewards), np.array([-4, -1, 5]) / (21**0.5 + 1e-4))
    np.testing.assert_allclose(group_advantages(rewards, eps=1.0), np.array([-4, -1, 5]) / (21**0.5 + 1))
    np.testing.assert_allclose(group_advantages(rewards, scale=False), [-4, -1, 5])
    np.testing.assert_allclose(group_advantages(rewards[:2]), np.array([-1.5, 1.5]) / (4.5**0.5 + 1e-4))
    assert group_advantages(np.array([3.0])).tolist() == [0.0]


def test_advantages_are_in_single_precision() -> None:
    both = generalized_advantages(*one_episode(3), np.zeros(1), 0.9, 0.9)
    assert {array.dtype for array in both} == {np.dtype(np.float32)}
