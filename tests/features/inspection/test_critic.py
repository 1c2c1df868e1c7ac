"""Statistics of a critic: of hand-made numbers, and of utterances in the same state."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from critics import Consistent, game_config, states_of

from rl4dialog.core.types import PARTNER, Dialogue, Sample, Turn
from rl4dialog.features.inspection.critic import (
    _areas_by_turn,
    _Logged,
    critic_statistics,
    split_half_reliability,
    utterances_in,
)
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.critic_measure import AT_CHANCE, CriticMeasure


def test_statistics_of_hand_made_numbers():
    values = np.arange(20.0)
    returns = np.stack([2 * values - 1, 2 * values + 1], axis=1)
    seen = np.array([[0, 1.0, 1.0], [0, 2.0, 3.0], [0, 3.0, 2.0], [0, 4.0, 4.0]])
    # Pairs: right, wrong, tie of the values; equal returns and two ends do not count.
    right, wrong = [(1.0, np.array([1.0, 1.0])), (2.0, np.array([5.0]))], [(2.0, np.zeros(2)), (1.0, np.ones(2))]
    tie, none = [(1.0, np.ones(2)), (1.0, np.zeros(2))], [(1.0, np.ones(2)), (2.0, np.ones(1))]
    ends, failed = [(1.0, np.ones(1)), (2.0, np.zeros(1))], [(1.0, np.full(2, math.nan)), (2.0, np.zeros(2))]
    alternatives = [*[right] * 6, *[wrong] * 2, *[tie] * 2, none, ends, failed]
    found = critic_statistics(states_of(values), returns, seen, alternatives)
    metrics = found["metrics"]
    assert metrics["value_rank"] == metrics["reliability"] == metrics["value_rank/highest"] == pytest.approx(1)
    assert metrics["slope"] == pytest.approx(2) and metrics["order"] == pytest.approx(0.7)
    # 1 - var(G - V) / var(G) = 1 - (1 + 1) / 4 / 1.25
    assert metrics["explained_variance"] == pytest.approx(0.6)
    noise = 2.0  # (1^2 + 1^2) / (2 - 1)
    between = (2 * values).var(ddof=1) - noise / 2
    assert metrics["explained_variance/highest"] == pytest.approx(between / (between + noise))
    assert [each["value"] for each in found["bins"]] == pytest.approx(np.arange(10) * 2 + 0.5)
    assert [each["mean_return"] for each in found["bins"]] == pytest.approx(np.arange(10) * 4 + 1)
    assert found["notes"] == ["10 pairs of utterances in the same state differ in their returns"]


def test_truth_ranks_highest_and_noise_at_chance():
    rng = np.random.default_rng(0)
    truth, turns = rng.normal(size=300), np.arange(300) % 3
    returns = truth[:, None] + rng.normal(size=(300, 64))
    seen = np.stack([turns, truth, returns[:, 0]], axis=1)
    found = critic_statistics(states_of(truth, turns), returns, seen)
    metrics, notes = found["metrics"], found["notes"]
    assert metrics["value_rank"] > 0.97 and metrics["value_rank_within_turns"] > 0.97
    assert metrics["value_rank/low"] < metrics["value_rank"] < metrics["value_rank/high"]
    assert metrics["slope"] == pytest.approx(1, abs=0.05)
    assert metrics["explained_variance"] == pytest.approx(0.5, abs=0.1)
    assert metrics["explained_variance/highest"] == pytest.approx(0.5, abs=0.1)
    assert {f"value_rank/turn_{turn}" for turn in (1, 2, 3)} < metrics.keys() and AT_CHANCE not in notes
    found = critic_statistics(states_of(rng.normal(size=300), turns), returns, seen)
    assert abs(found["metrics"]["value_rank"]) < 0.15 and AT_CHANCE in found["notes"]


@pytest.mark.parametrize(
    ("said", "n_replies", "went"),
    [
        (["a b", "c", "d"], 2, True),
        (["a  b", "c", "d", "bye"], 2, True),
        (["a b", "x", "d"], 2, False),
        (["a b", "c"], 1, False),
        (["a b", "c", "d", "error", "d"], 3, False),
    ],
)
def test_only_conversations_that_go_as_in_the_data_count(said, n_replies, went):
    player = _Logged(Sample(0, "hi", ["a b"], {"continuation": ["c", "d", "bye"]}))
    turns = [Turn(text, PARTNER) for text in ("hi", *said)]
    assert (
        player.went_as_here(SimpleNamespace(dialogue=Dialogue(0, tuple(turns), n_given=1), replies=[None] * n_replies))
        is went
    )


def test_areas_are_of_pairs_in_the_same_turn():
    rng = np.random.default_rng(0)
    good = np.arange(60) % 3 == 0
    owners, turns = np.repeat(np.arange(60), 2), np.tile([0.0, 1.0], 60)
    # In the first turn, values are noise; in the second one, they are higher in conversations that become good.
    values = np.where(turns == 1, 10 + good[owners] + rng.normal(size=120), rng.normal(size=120))
    found = _areas_by_turn(owners, turns, values, good)
    areas = [roc_auc(good, values[turns == turn]) for turn in (0, 1)]
    assert [found["auc/turn_1"], found["auc/turn_2"]] == pytest.approx(areas)
    assert found["auc_within_turns"] == pytest.approx(np.mean(areas)), "as many pairs in both"
    assert found["auc/turn_2/low"] > 0.5 > found["auc/turn_1/low"]
    few = _areas_by_turn(owners[:21], turns[:21], values[:21], good[:11])
    assert "auc/turn_1" in few and "auc/turn_2" in few and "auc/turn_2" not in _areas_by_turn(*columns(19), good[:10])


def roc_auc(good, values):
    pairs = [(a > b) + (a == b) / 2 for a in values[good] for b in values[~good]]
    return np.mean(pairs)


def columns(n):
    """The first n states of conversations with two turns."""
    return np.repeat(np.arange(60), 2)[:n], np.tile([0.0, 1.0], 60)[:n], np.arange(float(n))


def test_turns_without_a_rank_correlation_are_named():
    values = [*range(12), *([7.0] * 12), *range(3)]
    turns = [0] * 12 + [1] * 12 + [2] * 3
    returns = np.random.default_rng(0).normal(size=(27, 4))
    seen = np.stack([turns, values, returns[:, 0]], axis=1)
    found = critic_statistics(states_of(values, turns), returns, seen)
    assert "value_rank/turn_1" in found["metrics"] and "value_rank/turn_2" not in found["metrics"]
    assert any(note.startswith("turn 2, 3 without a rank correlation: fewer than 10 states") for note in found["notes"])


def test_alternatives_are_distinct_and_their_returns_contain_their_own_reward(tmp_path):
    parts = Assembly(game_config(tmp_path))
    player = Consistent(parts)
    measure = CriticMeasure(parts, player, player, seed=0)
    states, *_ = measure.drawn(parts.data.samples("val"), 30, 2)
    found = utterances_in(measure, states, 6)
    assert len(found) == 30
    for state, utterances in zip(states, found, strict=True):
        assert 1 <= len(utterances) <= 5
        for estimate, returns in utterances:
            if len(returns) == 1:  # the last turn, or a right guess
                assert estimate == pytest.approx(returns[0]) and returns[0] in (
                    pytest.approx(-0.05),
                    pytest.approx(0.95),
                )
            else:
                assert len(returns) == 6 and state.turn < 7
                assert all((each * 20) == pytest.approx(round(each * 20)) for each in returns)
    open_ = list(itertools.chain(*found))
    errors = np.array([estimate - returns.mean() for estimate, returns in open_ if len(returns) > 1])
    assert len(errors) > 40 and abs(errors.mean()) < 4 * errors.std() / math.sqrt(len(errors))


def test_reliability_is_that_of_the_whole_from_two_halves():
    one, other = np.array([1.0, 2, 3, 4]), np.array([2.0, 1, 4, 3])
    r = 0.6  # of these
    samples = np.stack([one - 1, other, one + 1, other], axis=1)
    assert split_half_reliability(samples) == pytest.approx(2 * r / (1 + r))
    assert split_half_reliability(np.stack([one, -one], axis=1)) == 0
    assert math.isnan(split_half_reliability(np.stack([one, np.ones(4)], axis=1)))
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=(4000, 1)) + rng.normal(size=(4000, 8))
    assert split_half_reliability(noisy) == pytest.approx(1 / (1 + 1 / 8), abs=0.02)
