"""The one place where the rewards of a rollout are weighted and summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, weighted_sum


class TaskRewards:
    """Sums the rewards of replies: raw values per token from the env workers, and per reply from this process.

    Args:
        parts: All rewards with their weights.
        values: Computes the raw values, by name, of the parts that score whole replies in this process; required if
            there are any.

    Attributes:
        weight_names: Names of the changing weights, which are logged beside the values of the parts.
        last_failure: Message of the last failed reward in this process whose reply is masked, if any.
    """

    def __init__(
        self, parts: Sequence[RewardPart], values: Callable[[FinishedReplies], dict[str, list[float]]] | None = None
    ) -> None:
        self._in_workers = [part for part in parts if not part.in_main_process]
        self._in_main = [part for part in parts if part.in_main_process]
        self._changing = {f"{part.name}/weight": part for part in parts if callable(part.weight)}
        self.weight_names = frozenset(self._changing)
        self._values = values
        self.last_failure: str | None = None

    def __call__(
        self, infos: Sequence[dict[str, Any]], lengths: Sequence[int], dones: list[bool], iteration: int
    ) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, list[float]]]:
        """Sum the rewards of a batch of replies.

        Args:
            infos: Info dicts of :class:`~rl4dialog.envs.utterance_view.UtteranceView`.
            lengths: Numbers of tokens.
            dones: Whether the episode ended with the reply.
            iteration: Iteration for changing weights, counted from 1.

        Returns:
            The weighted sum per token of each reply, (n,) float64, with rewards of whole replies on the last token
            and NaN for a failed reward; the payments for the earlier replies of each conversation, oldest first; and by
            name the raw value of each part per reply, and changing weights.
        """
        per_token = [{name: values.astype(float) for name, values in info["reward_parts"].items()} for info in infos]
        rewards = [
            np.zeros(length) + weighted_sum(self._in_workers, raw, iteration)
            for length, raw in zip(lengths, per_token, strict=True)
        ]
        values = {part.name: [float(sum(raw[part.name])) for raw in per_token] for part in self._in_workers}
        earlier = [np.zeros(0) for _ in infos]
        if self._in_main:
            assert self._values is not None
            replies = _finished(infos, dones)
            found = self._values(replies)
            self.last_failure = next(reversed(replies.failures), self.last_failure)
            for row, reward in enumerate(rewards):
                raw = {part.name: found[part.name][row] for part in self._in_main}
                reward[-1] += weighted_sum(self._in_main, raw, iteration)
                for part in self._in_main:
                    if part.name in replies.earlier and (paid := replies.earlier[part.name][row]):
                        earlier[row] = earlier[row] if len(earlier[row]) else np.zeros(len(paid))
                        earlier[row] += part.term(np.array(paid), iteration)
                        found[part.name][row] += sum(paid)
            values |= found
        values |= {name: [part.weight_at(iteration)] for name, part in self._changing.items()}
        return rewards, earlier, values


def _finished(infos: Sequence[dict[str, Any]], dones: list[bool]) -> FinishedReplies:
    return FinishedReplies(
        [info["prompt_text"] for info in infos],
        [info["gen_text"] for info in infos],
        [info["ref_texts"] for info in infos],
        [info["meta_info"] for info in infos],
        [info["sample_id"] for info in infos],
        dones,
        [info["dialogue"] for info in infos if "dialogue" in info],
    )
