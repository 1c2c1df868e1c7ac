"""Estimators of advantages in made-up games, and their distance from a truth that is known with noise."""

import numpy as np
import pytest
from measure_advantages import (
    GROUP,
    LAMBDAS,
    Games,
    Size,
    estimates,
    measured_script,
    statistics,
    value_of_script,
    without_critic,
)
from measure_regret import ALL, mask

from rl4dialog.tasks.guess_what import QUESTIONS

LENGTHS = [2, 1, 3, 1, 1, 2, 2, 4]


def made_up_games():
    rng = np.random.default_rng(0)
    game = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    turn = np.concatenate([np.arange(n) for n in LENGTHS])
    rewards, values = rng.normal(size=(2, len(game)))
    return Games(game, turn, rewards, values)


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
        for discount in (0.0, 0.5, 0.9):
            at_turn = {h: sum(discount ** (u - t) * reward[h, u] for u in range(t, n)) for h, n in enumerate(LENGTHS)}
            mean = np.mean([at_turn[h] for h, n in enumerate(LENGTHS) if t < n])
            expected[f"to go, by turn, discount {discount:g}"].append(at_turn[g] - mean)
        expected["critic, lambda 1"].append(to_go[g, t] - value[g, t])
        expected["critic, lambda 0"].append(reward[g, t] + value.get((g, t + 1), 0.0) - value[g, t])
    for name, advantages in expected.items():
        if advantages:
            np.testing.assert_allclose(found[name], advantages, rtol=1e-4, atol=1e-5)
    assert sum(map(bool, expected.values())) == 10


def test_noise_of_the_truth_is_taken_out():
    rng, n, k = np.random.default_rng(1), 20_000, 8
    true = rng.normal(size=n)
    returns = np.stack([np.zeros(n), true])[:, :, None] + 3 * rng.normal(size=(2, n, k))
    estimated = true + rng.normal(size=n)
    found = statistics(estimated, returns.transpose(1, 0, 2))
    assert found["correlation"] == pytest.approx(0.5**0.5, abs=0.03)
    assert found["error"] == pytest.approx(1.0, abs=0.1)
    assert found["variance of the truth"] == pytest.approx(1.0, abs=0.1)
    assert found["correlation/low"] < 0.5**0.5 < found["correlation/high"]
    assert np.isnan(statistics(np.zeros(n), returns.transpose(1, 0, 2))["correlation"])
    # The same states are drawn for both, so an interval of a gain is narrower than those of what is compared.
    beside = statistics(estimated, returns.transpose(1, 0, 2), estimated + rng.normal(size=n))
    assert beside["correlation gained"] == pytest.approx(0.5**0.5 - 3**-0.5, abs=0.03)
    assert beside["error less"] == pytest.approx(1.0, abs=0.1)
    widths = [beside[f"{name}/high"] - beside[f"{name}/low"] for name in ("correlation gained", "correlation")]
    assert 0 < widths[0] < widths[1]
    assert "error less" not in found
    assert without_critic("critic after 5, lambda 0.9") == "to go, by turn, discount 0.9"
    assert without_critic("exact critic, lambda 1") == "to go, by turn"
    assert without_critic("to go, by turn, discount 0.5") is None


def test_truth_of_the_scripted_player_is_exact():
    found = measured_script(Size(n_games=1200), seed=3)
    assert found["return"] == pytest.approx(value_of_script(ALL, 8), abs=0.045)  # three standard errors
    # Two things and two turns: one of the questions that tell them apart, or any, and then a guess.
    n_telling = sum(("mouse" in question.things) != ("shark" in question.things) for question in QUESTIONS)
    share = 0.5 + 0.5 * n_telling / len(QUESTIONS)
    assert 0 < n_telling < len(QUESTIONS)
    assert value_of_script(mask(["mouse", "shark"]), 2) == pytest.approx(share * 0.9 + (1 - share) * 0.4)
    rows = found["estimators"]
    truth = rows["to go"]["variance of the truth"]
    for name in ("exact critic, lambda 0", "exact critic, lambda 0.5", "exact critic, lambda 1"):
        # Of an unbiased estimate, the covariance with the truth is the truth's variance.
        deviation = (rows[name]["error"] + truth) ** 0.5
        assert rows[name]["correlation"] * deviation == pytest.approx(truth**0.5, rel=0.15)
    assert rows["exact critic, lambda 0.9"]["correlation gained/low"] > 0
    errors = [rows[f"exact critic, lambda {each:g}"]["error"] for each in LAMBDAS]
    assert errors == sorted(errors) and errors[-1] < rows["to go, by turn"]["error"] < rows["total reward"]["error"]
