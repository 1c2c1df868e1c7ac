"""Estimators of advantages in made-up games, and their distance from a truth that is known with noise."""

from types import SimpleNamespace

import numpy as np
import pytest
from measure_advantages import GROUP, Games, estimates, statistics

LENGTHS = [2, 1, 3, 1, 1, 2, 2, 4]


def made_up_games():
    rng = np.random.default_rng(0)
    game = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    turn = np.concatenate([np.arange(n) for n in LENGTHS])
    rewards, values = rng.normal(size=(2, len(game)))
    return Games([SimpleNamespace()] * len(LENGTHS), [], game, turn, rewards, values)


def test_estimates_are_those_of_loops():
    games = made_up_games()
    found = estimates(games, {"critic": games.values})
    reward, value = (
        {(g, t): x for g, t, x in zip(games.game, games.turn, of, strict=True)} for of in (games.rewards, games.values)
    )
    to_go = {(g, t): sum(reward[g, u] for u in range(t, LENGTHS[g])) for g, t in reward}
    total = [to_go[g, 0] for g in range(len(LENGTHS))]
    expected = {name: [] for name in found}
    for g, t in reward:
        mates = [h for h in range(len(LENGTHS)) if h // GROUP == g // GROUP and h != g]
        there = [to_go[h, t] for h in mates if (h, t) in to_go]
        expected["total reward"].append(total[g] - np.mean(total))
        expected["total reward, group"].append(total[g] - np.mean([total[h] for h in mates]))
        expected["to go"].append(to_go[g, t] - np.mean([*to_go.values()]))
        expected["to go, by turn"].append(to_go[g, t] - np.mean([x for (_, u), x in to_go.items() if u == t]))
        expected["to go, group by turn"].append(to_go[g, t] - np.mean(there) if there else 0.0)
        expected["critic, lambda 1"].append(to_go[g, t] - value[g, t])
        expected["critic, lambda 0"].append(reward[g, t] + value.get((g, t + 1), 0.0) - value[g, t])
    for name, advantages in expected.items():
        if advantages:
            np.testing.assert_allclose(found[name], advantages, rtol=1e-4, atol=1e-5)
    assert sum(map(bool, expected.values())) == 7 and {"critic, evpo", "critic, tether"} <= found.keys()


def test_noise_of_the_truth_is_taken_out():
    rng, n, k = np.random.default_rng(1), 20_000, 8
    true = rng.normal(size=n)
    returns = np.stack([np.zeros(n), true])[:, :, None] + 3 * rng.normal(size=(2, n, k))
    estimated = true + rng.normal(size=n)
    found = statistics(estimated, returns.transpose(1, 0, 2))
    assert found["correlation"] == pytest.approx(0.5**0.5, abs=0.03)
    assert found["error"] == pytest.approx(1.0, abs=0.1)
    assert found["variance of the truth"] == pytest.approx(1.0, abs=0.1)
    assert statistics(np.zeros(n), returns.transpose(1, 0, 2))["correlation"] == 0
