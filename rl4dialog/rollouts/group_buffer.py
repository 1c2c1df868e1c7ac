"""Advantages without a critic: a reply is compared with the other replies to the same prompt."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4dialog.functional.advantages import group_advantages, leave_one_out_advantages
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer


class GroupRolloutBuffer(SequenceRolloutBuffer):
    """Every token of a conversation has the advantage of its whole reward over those of its group.

    Args:
        args: Of :class:`SequenceRolloutBuffer`.
        baseline: ``leave_one_out``, or ``group_mean`` divided by the group's standard deviation.
        scale_rewards: Whether ``group_mean`` is divided by the standard deviation.
        kwargs: Of :class:`SequenceRolloutBuffer`.
    """

    def __init__(self, *args: Any, baseline: str = "leave_one_out", scale_rewards: bool = True, **kwargs: Any) -> None:
        self._baseline, self._scale_rewards = baseline, scale_rewards
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """Compare each episode with the others of its group; an episode without others has advantage 0."""
        del last_values, dones
        episodes = self._episodes()
        groups: dict[int, list[int]] = {}
        for i, episode in enumerate(episodes):
            groups.setdefault(episode[0].group, []).append(i)
        totals = np.array([sum(float(u.rewards.sum()) for u in episode) for episode in episodes])
        for members in groups.values():
            if self._baseline == "leave_one_out":
                advantages = leave_one_out_advantages(totals[members])
            else:
                advantages = group_advantages(totals[members], self._scale_rewards)
            for i, advantage in zip(members, advantages, strict=True):
                for utterance in episodes[i]:
                    utterance.advantages = np.full(len(utterance.response_ids), advantage, dtype=np.float32)
                    utterance.returns = np.full(len(utterance.response_ids), totals[i], dtype=np.float32)
        self.full = True

    def _units(self) -> list[list[int]]:
        """The utterances of a group stay together."""
        units: dict[int, list[int]] = {}
        for i, utterance in enumerate(self.utterances):
            units.setdefault(utterance.group, []).append(i)
        return list(units.values())
