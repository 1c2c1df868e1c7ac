"""Normalizing and clipping the rewards of whole episodes."""

import json

import numpy as np
import pytest
from rows import one_row

from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.task_rewards import RewardNormalizer


def conversations(*episodes):
    """Conversations of replies with these rewards per token."""
    return Replies.concatenate(
        [
            one_row([1], [1] * len(turn), episode=i, task_rewards=turn)
            for i, episode in enumerate(episodes)
            for turn in episode
        ]
    )


def batch(scores):
    return conversations(*([[0.0, 0.0, float(score)]] for score in scores))


def totals(replies):
    return np.bincount(replies.row_episodes(), weights=[row.sum() for row in replies.per_row("task_rewards")])


def test_batch_has_mean_zero_and_deviation_one_each_time():
    normalizer = RewardNormalizer("batch")
    for scores in ([1.0, 2.0, 6.0], [100.0, 300.0]):
        episodes = batch(scores)
        normalizer.normalize(episodes)
        found = totals(episodes)
        assert found == pytest.approx((np.array(scores) - np.mean(scores)) / np.std(scores), abs=1e-5)
        assert found.mean() == pytest.approx(0, abs=1e-5) and found.std() == pytest.approx(1, abs=1e-5)


def test_running_statistics_are_those_of_all_episodes_so_far():
    rng = np.random.default_rng(0)
    normalizer, seen = RewardNormalizer("running"), np.zeros(0)
    for n in (2, 5, 1, 40):
        scores = rng.normal(50.0, 3.0, size=n)
        seen = np.concatenate([seen, scores.astype(np.float32)])
        episodes = batch(scores)
        normalizer.normalize(episodes)
        expected = (scores - seen.mean()) / seen.std()
        assert totals(episodes) == pytest.approx(expected, abs=1e-3)


def test_running_statistics_are_saved_and_loaded():
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
def test_scores_that_are_all_alike_become_zero(mode, scores):
    episodes = batch(scores)
    RewardNormalizer(mode).normalize(episodes)
    assert totals(episodes) == pytest.approx(np.zeros(len(scores)), abs=1e-6)


def test_tokens_keep_their_share_and_the_last_takes_shift_and_clip():
    # Scores 4 and 0: mean 2, deviation 2, so they become 1 and -1, of which the clip leaves half.
    replies = conversations([[1.0, 1.0], [0.0, 2.0]], [[0.0], [2.0, -2.0]])
    RewardNormalizer("batch", clip=(-0.5, 0.5)).normalize(replies)
    rewards = [row.tolist() for row in replies.per_row("task_rewards")]
    assert rewards == [[0.5, 0.5], [0.0, 1.0 - 1.0 - 0.5], [0.0], [1.0, -1.0 - 1.0 + 0.5]]
    assert totals(replies).tolist() == [0.5, -0.5]


def test_clip_alone_changes_only_what_is_beyond_it():
    replies = conversations([[1.0, 3.0]], [[1.0], [0.5]], [[-9.0]])
    RewardNormalizer(clip=(-1.0, 2.0)).normalize(replies)
    assert [row.tolist() for row in replies.per_row("task_rewards")] == [[1.0, 1.0], [1.0], [0.5], [-1.0]]
