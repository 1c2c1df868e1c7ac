"""Double DQN (van Hasselt et al. 2016, arXiv 1509.06461)."""

from __future__ import annotations

from typing import Any, cast

import torch
from stable_baselines3 import DQN
from torch import Tensor
from torch.nn import functional as F


class DoubleDQN(DQN):
    """DQN of stable-baselines3, whose next action is chosen by the online network and valued by the target network."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        target = self.q_net_target
        # DQN takes the maximum of what it believes to be the target network.
        self.q_net_target = cast(Any, lambda observed: chosen_by(self.q_net(observed), target(observed)))
        try:
            super().train(gradient_steps, batch_size)
        finally:
            self.q_net_target = target


def chosen_by(online: Tensor, target: Tensor) -> Tensor:
    """Target values of the actions with the highest online values, and minus infinity for all other actions.

    Args:
        online: Shape (B, number of actions).
        target: Shape (B, number of actions).
    """
    best = F.one_hot(online.argmax(dim=1), online.shape[1]).bool()
    return torch.where(best, target, -torch.inf)
