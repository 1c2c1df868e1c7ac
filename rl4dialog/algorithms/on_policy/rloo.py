"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740)."""

from __future__ import annotations

import numpy as np

from rl4dialog.algorithms.on_policy.critic_free import CriticFree
from rl4dialog.functional.advantages import leave_one_out_advantages


class RLOO(CriticFree):
    """RLOO: the advantage of a reply is its reward minus the mean of the other replies to the same prompt.

    With ``n_epochs: 1`` and one minibatch, the gradient is that of REINFORCE. Further updates are clipped as in PPO.
    """

    def _advantages_of(self, rewards: np.ndarray) -> np.ndarray:
        return leave_one_out_advantages(rewards)
