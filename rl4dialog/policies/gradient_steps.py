"""How gradients are added up over micro-batches and processes, and applied."""

from __future__ import annotations

from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from rl4dialog.functional.distributed import add_up_gradients, whole


class GradientSteps:
    """Steps of a policy's own optimizer."""

    def __init__(self, policy: BasePolicy) -> None:
        self._policy = policy

    def clear(self) -> None:
        """Begin a minibatch."""
        self._policy.optimizer.zero_grad()

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Add the gradient of a micro-batch's part of the loss, in this process.

        Args:
            loss: A part of one mean over the minibatch of all processes. Scalar.
            is_last: Whether no other micro-batch follows.
        """
        loss.backward()

    def apply(self, max_grad_norm: float) -> Tensor:
        """Take a step along the gradient of all processes.

        Args:
            max_grad_norm: A gradient with a greater norm is scaled down to it.

        Returns:
            The norm before that. Scalar.
        """
        add_up_gradients(self._policy.parameters())
        grad_norm = nn.utils.clip_grad_norm_(self._policy.parameters(), max_grad_norm)
        self._policy.optimizer.step()
        return whole(grad_norm)
