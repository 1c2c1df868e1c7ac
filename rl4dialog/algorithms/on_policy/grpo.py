"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4dialog.algorithms.on_policy.critic_free import CriticFree, KLEstimator, KLIn
from rl4dialog.functional.advantages import group_advantages


class GRPO(CriticFree):
    """A reply's advantage is its reward, normalized over the replies to the same prompt.

    Losses are means over the agent tokens of a minibatch, as everywhere here; the paper takes the mean of each reply
    first.

    Args:
        args: Of :class:`CriticFree`.
        scale_rewards: Divide by the group's standard deviation.
        kl_in: As in the paper the KL is a term of the loss by default.
        kl_estimator: Likewise k3.
        kwargs: Of :class:`CriticFree`.
    """

    def __init__(
        self,
        *args: Any,
        scale_rewards: bool = True,
        kl_in: KLIn = "loss",
        kl_estimator: KLEstimator = "k3",
        **kwargs: Any,
    ) -> None:
        self.scale_rewards = scale_rewards
        super().__init__(*args, kl_in=kl_in, kl_estimator=kl_estimator, **kwargs)

    def _advantages_of(self, rewards: np.ndarray) -> np.ndarray:
        return group_advantages(rewards, self.scale_rewards)
