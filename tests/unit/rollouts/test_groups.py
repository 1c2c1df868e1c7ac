"""Which conversations of a group are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rows import rows_of
from scripted import Conversation, roll_out

from rl4dialog.rollouts.conversations import EndedConversation, Groups, GroupSettings

SAME, DIFFERENT = [[5], [5]], [[5], [6]]


def ended(rewards: Sequence[float], group: int = 0) -> EndedConversation:
    return EndedConversation([0], [np.array(rewards, dtype=np.float32)], [False], 0, group, 0.0)


def rollout(groups: list[list[list[int]]], n_tokens: int, **settings: Any) -> Any:
    """Two environments that answer the same prompts with these replies, whose rewards are their ids."""
    scripts = [[Conversation([pair[env]]) for pair in groups] for env in range(2)]
    return roll_out(scripts, n_tokens, groups=GroupSettings(2, **settings))


def stored(found: Any) -> list[list[int]]:
    return [row.response_ids.tolist() for row in rows_of(found.buffer)]


@pytest.mark.parametrize(
    ("constant", "expected", "n_episodes"),
    [("keep", [5, 5, 5, 6], 4), ("drop", [5, 6], 4), ("resample", [5, 6, 5, 6], 8)],
)
def test_constant_groups_are_kept_or_dropped_or_replaced(constant: str, expected: list[int], n_episodes: int) -> None:
    found = rollout([SAME, DIFFERENT, SAME, DIFFERENT, DIFFERENT], 4, constant=constant)
    assert [id for (id,) in stored(found)] == expected
    assert found.stats.n_tokens == len(expected) and len(found.stats.episodes) == n_episodes
    assert found.stats.means["rollout/constant_groups"] == 0.5
    # Rewards are those of all replies of the policy, also of those that are left out.
    assert found.stats.means["rollout/task_reward"] == pytest.approx(5.25)


def test_resampling_ends_with_a_warning(caplog: Any) -> None:
    found = rollout([DIFFERENT, SAME, SAME, SAME, SAME, DIFFERENT], 3, constant="resample", max_resampling=2)
    assert stored(found) == [[5], [6]]
    assert "3 of 4 groups had equal rewards: alg.args.max_resampling = 2 ends the rollout with 2 of 3 tokens" in (
        caplog.text
    )


@pytest.mark.parametrize("constant", ["drop", "resample"])
def test_rollout_of_constant_groups_only_is_kept(constant: str) -> None:
    found = rollout([SAME] * 8, 2, constant=constant, max_resampling=2)
    assert {tuple(reply) for reply in stored(found)} == {(5,)}
    assert found.stats.means["rollout/constant_groups"] == 1


def test_group_without_two_rewards_is_constant() -> None:
    groups = Groups(GroupSettings(2, "drop"))
    assert groups.add(0, ended([1.0])) == [] and groups.add(0, None) == []
    assert groups.found_constant == [True] and len(groups.rest()) == 1


def test_rewards_that_differ_by_rounding_are_constant() -> None:
    groups = Groups(GroupSettings(2, "drop"))
    for rewards in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]):
        assert groups.add(0, ended(rewards)) == []
    first, second = ended([1.0], 1), ended([1.5, 0.0], 1)
    assert groups.add(1, first) == [] and groups.add(1, second) == [first, second]
    assert groups.found_constant == [True, False] and groups.rest() == []
    assert groups.n_tokens == 6 + 3
