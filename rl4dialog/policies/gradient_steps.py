"""How gradients are added up over micro-batches and processes, and applied, unless they are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn
from torch.optim import Optimizer

from rl4dialog.core.errors import TrainingError
from rl4dialog.functional.distributed import all_reduce_gradients, full_tensor

# A minibatch with one extreme ratio is met alone. If this many follow each other, none of them would train anything.
MAX_SKIPPED_IN_A_ROW = 10


class StepGuard:
    """Leaves out steps whose gradient is not finite, so that no weight ever becomes NaN.

    Args:
        on_nan_gradient: ``skip`` such a step, until :data:`MAX_SKIPPED_IN_A_ROW` follow each other, or ``raise`` at
            the first.

    Attributes:
        n_skipped: Steps left out since the iteration began.
        n_in_a_row: Steps left out since the last one that was taken.
    """

    def __init__(self, on_nan_gradient: str = "skip") -> None:
        self.n_skipped = 0
        self._limit = MAX_SKIPPED_IN_A_ROW if on_nan_gradient == "skip" else 1
        self.n_in_a_row, self._iteration = 0, 0

    def begin_iteration(self, iteration: int) -> None:
        """Count anew; ``iteration`` is for the error."""
        self._iteration, self.n_skipped = iteration, 0

    def allows(self, grad_norm: Tensor) -> bool:
        """Whether a step may be taken; one that may not is counted.

        Args:
            grad_norm: Of all processes together, so that all decide alike. Scalar.

        Raises:
            TrainingError: If too many steps in a row could not be taken.
        """
        if torch.isfinite(grad_norm):
            self.n_in_a_row = 0
            return True
        self.n_skipped += 1
        self.n_in_a_row += 1
        if self.n_in_a_row >= self._limit:
            steps = "an optimizer step" if self._limit == 1 else f"{self._limit} optimizer steps in a row"
            raise TrainingError(
                f"iteration {self._iteration}: the gradient of {steps} was not finite (NaN or infinite). No such step "
                f"was taken, so the weights are as before. Look at "
                f"alg.args.learning_rate (lower it), the scale of the reward (reward_fn.normalize, reward_fn.clip), "
                f"and precision (try fp32); `rl4dialog doctor` examines model and reward"
            )
        return False

    @contextmanager
    def around(self, optimizer: Optimizer) -> Iterator[None]:
        """Guard the steps that others take with an optimizer: without gradients they change nothing."""

        def drop_if_not_finite(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            grads = [p.grad for p in parameters if p.grad is not None]
            if not self.allows(nn.utils.get_total_norm(grads)):
                for parameter in parameters:
                    parameter.grad = None

        hook = optimizer.register_step_pre_hook(drop_if_not_finite)
        try:
            yield
        finally:
            hook.remove()


class GradientSteps:
    """Steps of a policy's own optimizer.

    Attributes:
        guard: Says which of them may be taken.
    """

    def __init__(self, policy: BasePolicy) -> None:
        self._policy = policy
        self.guard = StepGuard()

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
        """Take a step along the gradient of all processes, if it is finite.

        Args:
            max_grad_norm: A gradient with a greater norm is scaled down to it.

        Returns:
            The norm before that. Scalar.

        Raises:
            TrainingError: If too many gradients in a row were not finite.
        """
        all_reduce_gradients(self._policy.parameters())
        grad_norm = full_tensor(nn.utils.clip_grad_norm_(self._policy.parameters(), max_grad_norm))
        if self.guard.allows(grad_norm):
            self._policy.optimizer.step()
        return grad_norm
