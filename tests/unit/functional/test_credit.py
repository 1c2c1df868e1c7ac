"""The credit rule: defaults are plain GAE, and each recipe is its formula, summed up naively."""

import numpy as np
import pytest

from rl4dialog.functional.credit import CreditRule, Episodes

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
@pytest.mark.parametrize(
    ("value_gae_lambda", "horizon"), [(None, None), (1.0, None), (0.5, None), (None, 1.25), (0.0, 0.3)]
)
def test_advantages_and_targets_are_the_sums_of_their_formulas(episodes, credit, value_gae_lambda, horizon):
    gamma, policy_lambda = 0.9, 0.7
    found = CreditRule(credit, gamma, policy_lambda, gamma, policy_lambda, value_gae_lambda, horizon)(episodes)
    for row, n in enumerate(LENGTHS):
        n_steps = n if credit == "token" else max(TURNS[row]) + 1
        own = policy_lambda if horizon is None else max(0, 1 - 1 / (horizon * n_steps))
        of_value = own if value_gae_lambda is None else value_gae_lambda
        if credit == "token":
            advantages, values = naive(episodes, row, gamma, own), episodes.values[row, :n]
            targets, returns = (naive(episodes, row, gamma, each) + values for each in (of_value, 1.0))
        else:
            advantages, values = naive_of_turns(episodes, row, gamma, own)
            targets, returns = (naive_of_turns(episodes, row, gamma, each)[0] + values for each in (of_value, 1.0))
            advantages = advantages - episodes.penalties[row, :n]
        np.testing.assert_allclose(found.advantages[row, :n], advantages, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.targets[row, :n], targets, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.returns[row, :n], returns, rtol=1e-5, atol=1e-6)


def test_steps_after_a_turn_have_their_own_factors(episodes):
    rule = CreditRule("token", gamma=0.9, gae_lambda=0.8, turn_gamma=0.5, turn_gae_lambda=0.0)
    found = rule(episodes)
    # With lambda 0 after a turn, the last token of the first turn has the one-step temporal difference.
    of = episodes
    expected = of.rewards[0, 1] + 0.5 * of.values[0, 2] - of.values[0, 1]
    assert found.advantages[0, 1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("credit", ["token", "turn"])
def test_tether_mixes_the_others_and_the_values_in_a_share_of_earlier_batches(credit):
    random = np.random.default_rng(1)
    mask = np.arange(3) < np.array([3, 2, 3, 1, 2])[:, None]
    rewards, values = random.normal(size=(2, 5, 3)).astype(np.float32) * mask
    none, turns = np.zeros_like(rewards), np.tile(np.arange(3.0), (5, 1))
    of = Episodes(rewards, none, np.abs(rewards), values, turns, mask, np.zeros(5), np.array([4, 4, 4, 7, 7]))
    rule, rho = CreditRule(credit, baseline="tether", gae_lambda=0.5, turn_gae_lambda=0.5), 0.0
    for _ in range(3):
        found, products, squares = rule(of), 0.0, 0.0
        assert rule.logged == {"rollout/tether_rho": pytest.approx(rho)}
        for row, t in zip(*mask.nonzero(), strict=True):
            others = [other for other in range(5) if of.groups[other] == of.groups[row] and other != row]
            total, of_others = rewards[row].sum(), np.mean([rewards[other].sum() for other in others])
            value = values[row, t] + rewards[row, :t].sum()
            baseline = (1 - rho) * of_others + rho * value
            assert found.advantages[row, t] == pytest.approx(total - baseline, abs=1e-5)
            assert found.targets[row, t] == pytest.approx(rewards[row, t:].sum(), abs=1e-5)
            assert abs(found.advantages[row, t]) <= found.scales[row, t]
            products += (total - of_others) * (value - of_others)
            squares += (value - of_others) ** 2
        rho = 0.95 * rho + 0.05 * min(max(products / squares, 0), 1)  # of this batch, from the next one on
        assert rule.rho == pytest.approx(rho, abs=1e-6) and 0 < rho < 0.2


def test_tether_compares_an_episode_without_others_with_its_values():
    rewards, values = np.array([[1.0, 2.0]], dtype=np.float32), np.array([[0.5, 0.25]], dtype=np.float32)
    mask, turns, none = np.ones((1, 2), dtype=bool), np.zeros((1, 2)), np.zeros((1, 2), dtype=np.float32)
    rule = CreditRule(baseline="tether")
    found = rule(Episodes(rewards, none, np.abs(rewards), values, turns, mask, np.zeros(1), np.array([0])))
    np.testing.assert_allclose(found.advantages, [[2.5, 1.75]])
    assert rule.rho == 0


@pytest.mark.parametrize("helps", [True, False])
def test_evpo_takes_the_values_while_they_explain_anything_else_the_mean(episodes, helps):
    returns = CreditRule()(episodes).returns
    values = np.where(episodes.mask, 0.9 * returns if helps else -returns, 0)
    rule = CreditRule(baseline="evpo", gae_lambda=0.5)
    found = rule(episodes._replace(values=values))
    baseline = values if helps else returns[episodes.mask].mean()
    expected = np.where(episodes.mask, returns - baseline, 0)
    np.testing.assert_allclose(found.advantages[episodes.mask], expected[episodes.mask], rtol=1e-5, atol=1e-6)
    assert rule.logged == {"rollout/evpo_uses_values": float(helps)}
