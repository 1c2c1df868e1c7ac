"""The one place where the rewards of a rollout are weighted and summed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, weighted_sum
from rl4dialog.functional.distributed import all_gather_object, mean_and_std
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.rounding import bounds, is_constant
from rl4dialog.rollouts.talk import Payment, Talk


class RewardNormalizer:
    """Normalizes rewards and keeps the statistics of all episodes so far.

    ``running`` uses mean and deviation of all episodes since the start of the run, including the current iteration;
    ``batch`` those of the current iteration; ``none`` does not normalize. Then scores are clipped.
    """

    def __init__(self, mode: str = "none", clip: tuple[float, float] | None = None) -> None:
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
        state: dict[str, Any] = {"n": self._n, "mean": self._mean, "sum_of_squares": self._sum_of_squares}
        if self._n:
            state["bounds"] = list(self._bounds)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n, self._mean = int(state["n"]), float(state["mean"])
        self._sum_of_squares = float(state["sum_of_squares"])
        if self._n:
            low, high = state["bounds"]
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
    """Rewards of an iteration's tokens, including the KL penalty, whitened like RL4LMs' ``norm_reward``.

    Mean and deviation are those of all processes; the mean is subtracted from the task rewards, not from the penalties.
    Returns rewards, and penalties and scales (sizes of the numbers that were added up) in the same unit, each (N,), and
    whether all rewards are equal up to rounding, in which case all three are 0.
    """
    mean, std = mean_and_std(rewards)
    if is_constant(rewards, scales, of_all_processes=True):
        return *np.zeros((3, len(rewards)), dtype=np.float32), True  # type: ignore[return-value]
    unit = std + 1e-8
    return (rewards - mean) / unit, penalties / unit, (scales + abs(mean)) / unit, False


class TaskRewards:
    """Sums the rewards of replies: raw values per token from the env workers, and per reply from this process."""

    def __init__(
        self, parts: Sequence[RewardPart], values: Callable[[FinishedReplies], dict[str, list[float]]] | None = None
    ) -> None:
        self._in_workers = [part for part in parts if not part.in_main_process]
        self._in_main = [part for part in parts if part.in_main_process]
        self._changing = [part for part in parts if callable(part.weight)]
        self._values = values
        self.last_failure: str | None = None  # message of the last reward that failed here and whose reply is masked

    def __call__(self, talks: Sequence[Talk], iteration: int) -> list[Payment]:
        """Score the last turns of conversations."""
        replies = FinishedReplies(
            [talk.info["prompt_text"] for talk in talks],
            [talk.info["gen_text"] for talk in talks],
            [talk.info["ref_texts"] for talk in talks],
            [talk.info["meta_info"] for talk in talks],
            [talk.info["sample_id"] for talk in talks],
            [talk.is_over for talk in talks],
            [talk.info["dialogue"] for talk in talks if "dialogue" in talk.info],
        )
        found: dict[str, list[float]] = {}
        if self._in_main:
            assert self._values is not None
            found = self._values(replies)
            self.last_failure = next(reversed(replies.failures), self.last_failure)
        payments = []
        for row, talk in enumerate(talks):
            raw = {name: values.astype(float) for name, values in talk.info["reward_parts"].items()}
            per_token = np.zeros(talk.replies[-1].n_tokens) + weighted_sum(self._in_workers, raw, iteration)
            values = {part.name: float(sum(raw[part.name])) for part in self._in_workers}
            values |= {name: each[row] for name, each in found.items()}
            per_token[-1] += weighted_sum(self._in_main, values, iteration)
            terms = []
            for part in self._in_main:
                if part.name in replies.earlier and (paid := replies.earlier[part.name][row]):
                    terms.append(part.term(np.array(paid), iteration))
                    values[part.name] += sum(paid)
            payments.append(Payment(per_token, sum(terms) if terms else np.zeros(0), values))
        return payments

    def weights(self, iteration: int) -> dict[str, float]:
        """Weights that change, by the name under which they are logged beside the values of the parts."""
        return {f"{part.name}/weight": part.weight_at(iteration) for part in self._changing}
