"""Policy gradient without a critic: several replies to each prompt are compared with each other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.kl import kl_estimates
from rl4dialog.functional.replies import ReplySamples
from rl4dialog.functional.resolution import log_probs_differ
from rl4dialog.rollouts.group_buffer import GroupRolloutBuffer

_WITHOUT_MEANING = ("gamma", "gae_lambda", "vf_coef", "clip_range_vf")
KLIn = Literal["reward", "loss"]
KLEstimator = Literal["k1", "k2", "k3"]


class CriticFree(PPO):
    """Base of RLOO and GRPO: PPO's clipped surrogate, with one advantage for all tokens of a conversation.

    Minibatches never split the replies to a prompt. With ``kl_in: reward`` every token pays for its log ratio to the
    reference (k1); with ``kl_in: loss`` the estimate is a term of the loss, weighted with the KL controller's
    coefficient. The gradient of k1 in the loss is 0 in the mean; k2's is that of the KL.

    Args:
        args: Of :class:`PPO`.
        n_generations: Replies to each prompt; divides the number of environments.
        kl_in: ``reward`` or ``loss``.
        kl_estimator: ``k1``, ``k2`` or ``k3``, for ``kl_in: loss``.
        kwargs: Of :class:`PPO`, but ``gamma``, ``gae_lambda``, ``vf_coef`` and ``clip_range_vf``.

    Raises:
        ConfigError: If an argument makes no sense.
    """

    buffer_class = GroupRolloutBuffer
    needs_critic = False

    def __init__(
        self,
        *args: Any,
        n_generations: Annotated[int, Field(ge=2)] = 4,
        kl_in: KLIn = "reward",
        kl_estimator: KLEstimator = "k1",
        normalize_advantage: bool = False,
        **kwargs: Any,
    ) -> None:
        self.group_size, self.kl_in, self.kl_estimator = n_generations, kl_in, kl_estimator
        super().__init__(*args, normalize_advantage=normalize_advantage, **kwargs)
        n_envs = self.env.num_envs if self.env is not None else n_generations
        self.check_arguments({**kwargs, "n_generations": n_generations}, n_envs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        for name in _WITHOUT_MEANING:
            if name in args:
                raise ConfigError(f"alg.args.{name} has no meaning without a critic; remove it")
        n_generations = args.get("n_generations", 4)
        if n_envs % n_generations:
            raise ConfigError(
                f"alg.args.n_generations is {n_generations}, which does not divide env.n_envs = {n_envs}: each prompt "
                f"is answered by n_generations environments"
            )

    @abstractmethod
    def _advantages_of(self, rewards: np.ndarray) -> np.ndarray:
        """Advantages of the conversations about one prompt, from their rewards. Shape (n,) -> (n,)."""

    def _buffer_kwargs(self) -> dict[str, Any]:
        return {"advantages_of": self._advantages_of}

    def _reward_kl_coeff(self) -> float:
        return self.kl_controller.coeff if self.kl_in == "reward" else 0.0

    def _terms(self, batch: ReplySamples, clip_range: float, clip_range_vf: float | None) -> dict[str, torch.Tensor]:
        _, log_prob, entropy = self.policy.evaluate_actions(batch.observations, batch.actions)
        assert entropy is not None
        # PPO's clipped surrogate; in the first step, where the ratio is 1, its gradient is REINFORCE's.
        terms = self._policy_terms(log_prob, entropy, batch, clip_range)
        # The KL as a term of the loss (Shao et al. 2024, eq. 3) where it is none of the reward.
        if self.kl_in == "loss":
            terms["kl_loss"] = kl_estimates(log_prob, batch.ref_log_prob, self.kl_estimator)
            # Where policy and reference agree, its gradient is rounding, of which Adam would make a whole step.
            differ = log_probs_differ(log_prob, batch.ref_log_prob, self.policy.precision)  # type: ignore[arg-type]
            terms["loss"] = terms["loss"] + self.kl_controller.coeff * differ * terms["kl_loss"]
        return terms
