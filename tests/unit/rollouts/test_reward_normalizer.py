"""Normalizing and clipping the rewards of whole episodes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.rollouts.buffer import StoredUtterance
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer


def episode(*turns: list[float]) -> list[StoredUtterance]:
    """A conversation of utterances with these rewards per token."""
    empty = np.zeros(0, dtype=np.float32)
    fields: dict[str, Any] = dict.fromkeys(
        ("prompt_ids", "response_ids", "log_probs", "unmasked_log_probs", "ref_log_probs", "values"), empty
    )
    return [StoredUtterance(**fields, task_rewards=np.array(turn, dtype=np.float32), episode=0) for turn in turns]


def batch(scores: Any) -> list[list[StoredUtterance]]:
    return [episode([0.0, 0.0, float(score)]) for score in scores]


def totals(episodes: list[list[StoredUtterance]]) -> np.ndarray:
    return np.array([sum(u.task_rewards.sum() for u in each) for each in episodes])


def test_batch_has_mean_zero_and_deviation_one_each_time() -> None:
    normalizer = RewardNormalizer("batch")
    for scores in ([1.0, 2.0, 6.0], [100.0, 300.0]):
        episodes = batch(scores)
        normalizer.normalize(episodes)
        found = totals(episodes)
        assert found == pytest.approx((np.array(scores) - np.mean(scores)) / np.std(scores), abs=1e-5)
        assert found.mean() == pytest.approx(0, abs=1e-5) and found.std() == pytest.approx(1, abs=1e-5)


def test_running_statistics_are_those_of_all_episodes_so_far() -> None:
    rng = np.random.default_rng(0)
    normalizer, seen = RewardNormalizer("running"), np.zeros(0)
    for n in (2, 5, 1, 40):
        scores = rng.normal(50.0, 3.0, size=n)
        seen = np.concatenate([seen, scores.astype(np.float32)])
        episodes = batch(scores)
        normalizer.normalize(episodes)
        expected = (scores - seen.mean()) / seen.std()
        assert totals(episodes) == pytest.approx(expected, abs=1e-3)


def test_running_statistics_are_saved_and_loaded() -> None:
    first = RewardNormalizer("running")
    first.normalize(batch([1.0, 5.0, 3.0]))
    second = RewardNormalizer("running")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    a, b = batch([2.0, 7.0]), batch([2.0, 7.0])
    first.normalize(a)
    second.normalize(b)
    np.testing.assert_array_equal(totals(a), totals(b))
    assert first.state_dict() == second.state_dict()


@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize("scores", [[3.0], [0.1, 0.1, 0.1], [0.0, 0.0]])
def test_scores_that_are_all_alike_become_zero(mode: str, scores: list[float]) -> None:
    episodes = batch(scores)
    RewardNormalizer(mode).normalize(episodes)
    assert totals(episodes) == pytest.approx(np.zeros(len(scores)), abs=1e-6)


def test_tokens_keep_their_share_and_the_last_takes_shift_and_clip() -> None:
    # Scores 4 and 0: mean 2, deviation 2, so they become 1 and -1, of which the clip leaves half.
    conversations = [episode([1.0, 1.0], [0.0, 2.0]), episode([0.0], [2.0, -2.0])]
    RewardNormalizer("batch", clip=(-0.5, 0.5)).normalize(conversations)
    assert [u.task_rewards.tolist() for u in conversations[0]] == [[0.5, 0.5], [0.0, 1.0 - 1.0 - 0.5]]
    assert [u.task_rewards.tolist() for u in conversations[1]] == [[0.0], [1.0, -1.0 - 1.0 + 0.5]]
    assert totals(conversations).tolist() == [0.5, -0.5]


def test_clip_alone_changes_only_what_is_beyond_it() -> None:
    conversations = [episode([1.0, 3.0]), episode([1.0], [0.5]), episode([-9.0])]
    RewardNormalizer(clip=(-1.0, 2.0)).normalize(conversations)
    rewards = [u.task_rewards.tolist() for conversation in conversations for u in conversation]
    assert rewards == [[1.0, 1.0], [1.0], [0.5], [-1.0]]


def test_nothing_and_unknown_mode() -> None:
    RewardNormalizer("batch").normalize([])
    with pytest.raises(ConfigError, match="one of none, running, batch, not 'always'"):
        RewardNormalizer("always")
