"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rl4dialog.algorithms.on_policy.critic_free import CriticFree, KLEstimator, KLIn
from rl4dialog.functional.advantages import group_advantages


class GRPO(CriticFree):
    """GRPO: the advantage of a reply is its reward, normalized over the replies to the same prompt.

    Losses are averaged over the agent tokens of a minibatch by default, as in all algorithms here. The paper first
    averages over each reply (``loss_aggregation: sequence_mean``).

    Args:
        args: Arguments of :class:`CriticFree`.
        scale_rewards: Divide by the standard deviation of the rewards of the ``group`` (``true``), of all replies of
            the iteration (``batch``; Liu et al. 2025, arXiv 2508.08221), or not at all (``none`` or ``false``).
        kl_in: Where the KL penalty is applied: ``reward`` or ``loss``. Default: ``loss``, as in the paper.
        kl_estimator: KL estimator for ``kl_in: loss``: ``k1``, ``k2`` or ``k3``. Default: ``k3``, as in the paper.
        kwargs: Keyword arguments of :class:`CriticFree`.
    """

    def __init__(
        self,
        *args: Any,
        scale_rewards: Literal["group", "batch", "none"] | bool = "group",
        kl_in: KLIn = "loss",
        kl_estimator: KLEstimator = "k3",
        **kwargs: Any,
    ) -> None:
        if isinstance(scale_rewards, bool):
            scale_rewards = "group" if scale_rewards else "none"
        self.scale_rewards = scale_rewards
        super().__init__(*args, kl_in=kl_in, kl_estimator=kl_estimator, **kwargs)

    def _advantages_of(self, rewards: np.ndarray) -> np.ndarray:
        return group_advantages(rewards, scale=self.scale_rewards == "group")

    def _buffer_kwargs(self) -> dict[str, Any]:
        return {**super()._buffer_kwargs(), "scale_by_batch": self.scale_rewards == "batch"}
