"""Advantages without a critic: a reply is compared with the other replies to the same prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl4dialog.functional.resolution import is_constant
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer


class GroupRolloutBuffer(SequenceRolloutBuffer):
    """Every token of a conversation has the advantage of its whole reward over those of its group.

    Args:
        args: Of :class:`SequenceRolloutBuffer`.
        advantages_of: Advantages of the conversations about one prompt, from their rewards. Shape (n,) -> (n,).
        kwargs: Of :class:`SequenceRolloutBuffer`.
    """

    def __init__(self, *args: Any, advantages_of: Callable[[np.ndarray], np.ndarray], **kwargs: Any) -> None:
        self._advantages_of = advantages_of
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """Compare each episode with the others of its group.

        Advantages are 0 in a group whose rewards are constant but for rounding, or that has one episode only.
        """
        del last_values, dones
        episodes = self.episodes()
        groups: dict[int, list[int]] = {}
        for i, episode in enumerate(episodes):
            groups.setdefault(episode[0].group, []).append(i)
        totals = np.array([sum(float(u.rewards.sum()) for u in episode) for episode in episodes])
        scales = np.array([sum(float(u.scales.sum()) for u in episode) for episode in episodes])
        for members in groups.values():
            constant = is_constant(totals[members], scales[members])
            self.found_constant.append(constant)
            advantages = np.zeros(len(members)) if constant else self._advantages_of(totals[members])
            for i, advantage in zip(members, advantages, strict=True):
                for utterance in episodes[i]:
                    n = len(utterance.response_ids)
                    utterance.advantages = np.full(n, advantage, dtype=np.float32)
                    utterance.advantage_scales = np.abs(utterance.advantages)
                    utterance.returns = np.full(n, totals[i], dtype=np.float32)
        self.full = True

    def _units(self) -> list[list[int]]:
        """The utterances of a group stay together."""
        units: dict[int, list[int]] = {}
        for i, utterance in enumerate(self.utterances):
            units.setdefault(utterance.group, []).append(i)
        return list(units.values())
