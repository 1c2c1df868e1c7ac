"""The score of a sequence classifier or reward model as a reward."""

from __future__ import annotations

from typing import Any, Literal

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.learned_reward import LearnedRewardMetric
from rl4dialog.rewards.metric_reward import BatchedMetricReward


class LearnedReward(BatchedMetricReward):
    """A classifier's or reward model's score of the reply, minus a baseline.

    Args:
        baseline: A number, or ``reference`` for the score of the sample's first reference, so that a reply as good as
            the reference earns 0.
        kwargs: Arguments of the metric, and ``shaping_fn``.
    """

    build_metric = LearnedRewardMetric

    def __init__(self, baseline: float | Literal["reference"] = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._baseline = baseline

    def scores(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        meta_infos: list[dict[str, Any]],
    ) -> list[float]:
        scores = super().scores(prompt_texts, gen_texts, ref_texts, meta_infos)
        if not isinstance(self._baseline, str):
            return [score - self._baseline for score in scores]
        if not all(ref_texts):
            raise DataError("reward 'learned_reward': baseline 'reference' needs a reference for every sample")
        references = super().scores(prompt_texts, [each[0] for each in ref_texts], ref_texts, meta_infos)
        return [score - reference for score, reference in zip(scores, references, strict=True)]
