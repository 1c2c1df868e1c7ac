"""Conversations about one prompt, compared with each other."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from rows import one_row, rows_of

from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.buffer import GroupRolloutBuffer

SPACE = spaces.Discrete(10)


def utterance(episode: int, group: int, *rewards: float) -> Replies:
    same = dict.fromkeys(("unmasked_log_probs", "ref_log_probs"), np.zeros(len(rewards)))
    return one_row([1], np.arange(len(rewards)), episode, group, task_rewards=rewards, **same)


def filled() -> GroupRolloutBuffer:
    """Two groups, interleaved; one conversation has two turns. Totals: 1 and 5 of group 4, 2 and 12 of group 9."""
    buffer = GroupRolloutBuffer(1, SPACE, SPACE, "cpu", advantages_of=lambda totals: totals - totals.min())
    for row in (
        utterance(0, 4, 1.0),
        utterance(1, 9, 0.0, 2.0),
        utterance(2, 4, 2.0, 1.0),
        utterance(3, 9, 12.0),
        utterance(2, 4, 2.0),
    ):
        buffer.add(row)
    buffer.compute_rewards(0.0)
    buffer.compute_returns_and_advantage()
    return buffer


def test_every_token_has_the_advantage_of_its_conversation_in_its_group() -> None:
    buffer = filled()
    assert buffer.full
    assert [u.advantages.tolist() for u in rows_of(buffer)] == [[0.0], [0.0, 0.0], [4.0, 4.0], [10.0], [4.0]]
    assert [u.returns.tolist() for u in rows_of(buffer)] == [[1.0], [2.0, 2.0], [5.0, 5.0], [12.0], [5.0]]
    assert {array.dtype for u in rows_of(buffer) for array in (u.advantages, u.returns)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_utterances_of_a_group_share_a_minibatch(batch_size: int | None) -> None:
    batches = [sorted(batch.returns.tolist()) for batch in filled().get(batch_size)]
    groups = [[1.0, 5.0, 5.0, 5.0], [2.0, 2.0, 12.0]]
    assert sorted(batches) == (groups if batch_size else [sorted(groups[0] + groups[1])])
