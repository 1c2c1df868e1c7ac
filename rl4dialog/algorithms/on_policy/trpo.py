"""Trust region policy optimization (Schulman et al. 2015, arXiv 1502.05477) over whole replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import sb3_contrib
import torch
from pydantic import Field
from sb3_contrib.common.utils import flat_grad
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.nn.attention import SDPBackend, sdpa_kernel

from rl4dialog.algorithms.on_policy.rollout_mixin import LMRolloutMixin
from rl4dialog.core.arguments import Count, NonNegative, Positive
from rl4dialog.functional.distributed import all_reduce, all_reduce_numbers, broadcast


class TRPO(LMRolloutMixin, sb3_contrib.TRPO):  # type: ignore[misc]
    """sb3-contrib's TRPO: its conjugate gradient, line search and critic updates, on whole replies.

    ``alg.args.target_kl`` limits the KL of one update, while ``kl_div.target_kl`` refers to the reference.
    The exact KL requires the probabilities of the whole vocabulary at every agent token of an iteration.

    Args:
        target_kl: Maximum KL of the policy from the rollout policy after one update, in nats per token.
        cg_max_steps: Maximum number of conjugate gradient steps.
        cg_damping: Value added to the diagonal of the Hessian.
        line_search_max_iter: Maximum number of step sizes to try, each smaller than the last.
        line_search_shrinking_factor: Factor between successive step sizes.
        n_critic_updates: Number of passes of the critic over the replies of an iteration.
        sub_sampling_factor: The Fisher-vector products of the conjugate gradient use one reply in this many (appendix
            C.1 of the paper). Unlike in sb3-contrib, the gradient and the line search always use all replies.
    """

    data_parallel = True
    no_meaning: ClassVar[Mapping[str, str]] = {"step_back": "finds its step with a line search"}

    def __init__(
        self,
        *args: Any,
        target_kl: Positive = 0.01,
        cg_max_steps: Count = 15,
        cg_damping: NonNegative = 0.1,
        line_search_shrinking_factor: Annotated[float, Field(gt=0, lt=1)] = 0.8,
        line_search_max_iter: Count = 10,
        n_critic_updates: Annotated[int, Field(ge=0)] = 10,
        sub_sampling_factor: Count = 1,
        **kwargs: Any,
    ) -> None:
        own: dict[str, Any] = {
            "cg_max_steps": cg_max_steps,
            "cg_damping": cg_damping,
            "line_search_shrinking_factor": line_search_shrinking_factor,
            "line_search_max_iter": line_search_max_iter,
            "n_critic_updates": n_critic_updates,
        }
        super().__init__(*args, target_kl=target_kl, step_back=None, **own, **kwargs)
        self.fisher_sub_sampling_factor = sub_sampling_factor

    def train(self) -> None:
        """Update the policy within the trust region, then the critic."""
        # Fisher-vector products differentiate the gradient of the KL once more. Fused attention kernels
        # have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            super().train()

    def _compute_actor_grad(
        self, kl_div: Tensor, policy_objective: Tensor
    ) -> tuple[list[nn.Parameter], Tensor, Tensor, list[tuple[int, ...]]]:
        """Gradients of the KL and of the objective for the actor's parameters, which the policy provides."""
        # sb3-contrib selects parameters without "value" in their names, but attention layers use that name too.
        policy: Any = self.policy
        candidates = list(policy.actor_parameters())
        if self.fisher_sub_sampling_factor > 1:
            kl_div = self._kl_of_some_replies()
        kl_grads = torch.autograd.grad(kl_div, candidates, create_graph=True, allow_unused=True)
        used = [(param, grad) for param, grad in zip(candidates, kl_grads, strict=True) if grad is not None]
        params = [param for param, _ in used]
        retain_graph = self.fisher_sub_sampling_factor == 1  # else the activations of the other replies are free to go
        objective_grads = torch.autograd.grad(policy_objective, params, retain_graph=retain_graph)
        return (
            params,
            all_reduce(torch.cat([grad.reshape(-1) for grad in objective_grads])),
            torch.cat([grad.reshape(-1) for _, grad in used]),
            [tuple(grad.shape) for _, grad in used],
        )

    def hessian_vector_product(
        self, params: list[nn.Parameter], grad_kl: Tensor, vector: Tensor, retain_graph: bool = True
    ) -> Tensor:
        """The sum of the products of all processes, which all multiply the vector of the first one."""
        broadcast([vector])  # the solver starts at random
        product = flat_grad((grad_kl * vector).sum(), params, retain_graph=retain_graph)
        return all_reduce(product) + self.cg_damping * vector

    def _kl_of_some_replies(self) -> Tensor:
        """KL of the policy from itself on a random share of the replies: 0, with the Fisher matrix as its Hessian."""
        buffer: Any = self.rollout_buffer
        (n_tokens,) = all_reduce_numbers(buffer.n_tokens)
        some = next(buffer.get(max(1, n_tokens // self.fisher_sub_sampling_factor)))
        distribution: Any = self.policy.get_distribution(some.observations).distribution  # type: ignore[operator]
        constant = type(distribution)(logits=distribution.logits.detach())
        return kl_divergence(constant, distribution).mean()
