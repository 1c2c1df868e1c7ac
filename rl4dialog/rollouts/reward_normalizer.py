"""Normalization of rewards: of episodes before the KL penalty, or of tokens after it.

The score of an episode is the sum of its task rewards. It is normalized to (score - mean) / deviation, then clipped.
Every token's reward is divided by the deviation, and the remaining change is added to the episode's last token. The
rewards of an episode thus still sum to its score, and tokens keep their share of it. If all scores are equal up to
rounding, they become 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import all_gather_object, mean_and_std
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.rounding import bounds, is_constant

MODES = ("none", "running", "batch")


class RewardNormalizer:
    """Normalizes rewards and keeps the statistics of all episodes so far.

    Args:
        mode: ``running`` uses the mean and deviation of all episodes since the start of the run, including the current
            iteration; ``batch`` uses those of the current iteration; ``none`` does not normalize.
        clip: Lower and upper bound of normalized scores.
    """

    def __init__(self, mode: str = "none", clip: tuple[float, float] | None = None) -> None:
        if mode not in MODES:
            raise ConfigError(f"reward_fn.normalize must be one of {', '.join(MODES)}, not {mode!r}")
        self.mode, self.clip = mode, clip
        self._n, self._mean, self._sum_of_squares = 0, 0.0, 0.0
        self._bounds = bounds(np.zeros(0))

    def normalize(self, replies: Replies) -> None:
        """Normalize the task rewards of an iteration's episodes in place, with the statistics of all processes."""
        rewards, episodes = replies.flat("task_rewards").numpy(), replies.token_episodes()
        scores, scales = (np.bincount(episodes, weights=numbers) for numbers in (rewards, np.abs(rewards)))
        mean, deviation, constant = self._statistics(
            *np.concatenate(all_gather_object(np.stack([scores, scales])), axis=1)
        )
        targets = np.zeros_like(scores) if constant else (scores - mean) / deviation
        if self.clip is not None:
            targets = targets.clip(*self.clip)
        rewards = rewards / np.float32(deviation)
        last = np.zeros(len(scores), dtype=int)
        last[episodes] = np.arange(len(rewards))  # for repeated indices, the last assignment wins
        rewards[last] += targets - np.bincount(episodes, weights=rewards)
        replies.task_rewards = replies.scattered(rewards)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict`."""
        state: dict[str, Any] = {"n": self._n, "mean": self._mean, "sum_of_squares": self._sum_of_squares}
        if self._n:
            state["bounds"] = list(self._bounds)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._n, self._mean = int(state["n"]), float(state["mean"])
        self._sum_of_squares = float(state["sum_of_squares"])
        deviation = math.sqrt(self._sum_of_squares / self._n) if self._n else -math.inf
        # States of earlier versions have no bounds. Their scores differed if they have a deviation.
        low, high = state.get("bounds", (self._mean + deviation, self._mean - deviation))
        self._bounds = float(low), float(high)

    def _statistics(self, scores: np.ndarray, scales: np.ndarray) -> tuple[float, float, bool]:
        """Mean and deviation for the mode, and whether the deviation is only rounding (it is 1 then)."""
        if self.mode == "none":
            return 0.0, 1.0, False
        low, high = bounds(scores, scales)
        if self.mode == "batch":
            mean, deviation = float(scores.mean()), float(scores.std())
        else:
            # Combine two samples of different sizes (Chan, Golub and LeVeque 1983).
            n, difference = self._n + len(scores), float(scores.mean()) - self._mean
            self._sum_of_squares += float(((scores - scores.mean()) ** 2).sum())
            self._sum_of_squares += difference**2 * self._n * len(scores) / n
            self._mean += difference * len(scores) / n
            self._n = n
            low, high = max(low, self._bounds[0]), min(high, self._bounds[1])
            self._bounds = low, high
            mean, deviation = self._mean, math.sqrt(self._sum_of_squares / n)
        constant = low <= high
        return mean, 1.0 if constant else deviation, constant


def whitened(
    rewards: np.ndarray, penalties: np.ndarray, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Whiten the rewards of an iteration's tokens, including the KL penalty, like RL4LMs' ``norm_reward``.

    Args:
        rewards: Rewards of this process. Mean and deviation are those of all processes. Shape (N,).
        penalties: KL penalties, which the rewards include. Shape (N,).
        scales: Sizes of the numbers that were added up to the rewards. Shape (N,).

    Returns:
        Whitened rewards, and penalties and scales in the same unit, each (N,); and whether all rewards are equal up to
        rounding, in which case all three are 0. The mean is subtracted from the task rewards, not from the penalties.
    """
    mean, std = mean_and_std(rewards)
    if is_constant(rewards, scales, of_all_processes=True):
        return *np.zeros((3, len(rewards)), dtype=np.float32), True  # type: ignore[return-value]
    unit = std + 1e-8
    return (rewards - mean) / unit, penalties / unit, (scales + abs(mean)) / unit, False
