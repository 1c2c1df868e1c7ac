"""The one adapter from a metric to a reward."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import BaseMetric, SentenceRewardFunction


class MetricReward(SentenceRewardFunction):
    """A metric's score of the reply, paid at the end of the episode.

    Args:
        metric: Must give a score per text.
        key: Which of the metric's keys.
        shaping_fn: Id of another reward that is added (RL4LMs).
    """

    def __init__(self, metric: BaseMetric, key: str, shaping_fn: str | None = None) -> None:
        from rl4dialog.catalog import RewardFunctionRegistry

        self._metric, self._key = metric, key
        self._shaping_fn = RewardFunctionRegistry.get(shaping_fn) if shaping_fn is not None else None

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        scores, corpus = self._metric.compute([prompt_text], [gen_text], [ref_texts], [meta_info])[self._key]
        return scores[0] if scores is not None else corpus

    def __call__(
        self,
        prev_observation: Any,
        action: int,
        current_observation: Any,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        reward = super().__call__(prev_observation, action, current_observation, done, meta_info)
        if self._shaping_fn is not None:
            reward += self._shaping_fn(prev_observation, action, current_observation, done, meta_info)
        return reward
