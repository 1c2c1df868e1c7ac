"""PPO, NLPO and A2C for language models."""

from __future__ import annotations

from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.utils import explained_variance

from rl4dialog.algorithms.on_policy.clipped import ClippedSurrogate
from rl4dialog.algorithms.on_policy.rollout_mixin import LMRolloutMixin
from rl4dialog.core.arguments import NonNegativeInt, Positive
from rl4dialog.functional.losses import ClipRange, value_loss
from rl4dialog.functional.replies import ReplySamples


class PPO(ClippedSurrogate):
    """stable-baselines3's PPO on minibatches of whole replies, with gradient accumulation.

    An update equals that of ``stable_baselines3.PPO.train`` on the same buffer.

    Args:
        critic_warmup_iters: Number of first iterations that train only the critic, on rollouts of the initial policy.
            The policy, its optimizer state and the KL coefficient stay as they are. A shared critic trains its head.
        critic_epochs: Further passes over the replies of an iteration that train only the critic, also after
            ``target_kl`` has stopped the policy (SAO, arXiv 2607.08507). A shared critic trains its head.
        huber_delta: Size of a value's error above which it counts linearly instead of squared.
    """

    def __init__(
        self,
        *args: Any,
        critic_warmup_iters: NonNegativeInt = 0,
        critic_epochs: NonNegativeInt = 0,
        huber_delta: Positive | None = None,
        **kwargs: Any,
    ) -> None:
        self.critic_warmup_iters, self.critic_epochs, self.huber_delta = critic_warmup_iters, critic_epochs, huber_delta
        super().__init__(*args, **kwargs)

    def train(self) -> None:
        """Update policy and critic on the collected rollout."""
        range_vf: Any = self.clip_range_vf
        self._clip_vf: float | None = range_vf and range_vf(self._current_progress_remaining)
        super().train()

    def _end_update(self) -> None:
        self._train_critic()
        super()._end_update()

    def _terms(self, batch: ReplySamples, clip: ClipRange) -> dict[str, torch.Tensor]:
        values, log_prob, entropy = self.policy.evaluate_actions(batch.observations, batch.actions)
        assert entropy is not None
        terms = self._policy_terms(log_prob, entropy, batch, clip)
        # Value clipping (detail 9), off by default as in stable-baselines3.
        terms["value_loss"] = self._value_loss(values, batch)
        # Overall loss (detail 10): surrogate, entropy bonus and value loss.
        of_policy = 0.0 if self.is_critic_warmup else terms["loss"]
        terms["loss"] = of_policy + self.vf_coef * terms["value_loss"]
        return terms

    def _train_critic(self) -> None:
        """Train the critic alone in further passes."""

        def terms_of(part: ReplySamples) -> dict[str, torch.Tensor]:
            values = self.policy.predict_values(part.observations).squeeze(1)
            return {"loss": self.vf_coef * self._value_loss(values, part)}

        for _ in range(self.critic_epochs):
            for batch in self.rollout_buffer.minibatches(self.batch_size):  # type: ignore[attr-defined]
                self.policy.optimizer.zero_grad()
                self._gradient(batch, terms_of)
                self._keep_policy()
                self.step_guard.step(self.policy, self.max_grad_norm)

    def _value_loss(self, values: torch.Tensor, batch: ReplySamples) -> torch.Tensor:
        """Error of the values at each agent token. Shape (N,)."""
        return value_loss(values, batch.old_values, batch.returns, self._clip_vf, self.huber_delta)

    def _record(self, history: dict[str, list[torch.Tensor]], clip: ClipRange) -> None:
        super()._record(history, clip)
        buffer: Any = self.rollout_buffer
        # Targets contain the values themselves, unless their lambda is 1; the returns of whole episodes do not.
        for name, targets in (("", buffer.returns), ("return_", buffer.episode_returns)):
            self.logger.record(f"train/{name}explained_variance", explained_variance(buffer.values, targets))
        if self._clip_vf is not None:
            self.logger.record("train/clip_range_vf", self._clip_vf)


class NLPO(PPO):
    """PPO with a maskable policy. The mask is updated with the trained weights every ``target_update_iterations``.

    The reward may drop after an update: tokens outside a mask are not trained, and a new mask may allow them. The KL
    penalty, which ignores the mask, keeps these tokens near the reference.
    """

    maskable = True

    def train(self) -> None:
        """Update policy and critic, and periodically the mask."""
        super().train()
        # The mask policy periodically becomes a copy of the trained policy (algorithm 1).
        policy: Any = self.policy
        self.logger.record("train/mask_synced", float(policy.end_iteration()))


class A2C(LMRolloutMixin, stable_baselines3.A2C):  # type: ignore[misc]
    """stable-baselines3's A2C: one optimizer step per iteration, on all replies at once.

    Args:
        target_kl: With ``step_back``, limits the KL of the policy from the rollout policy after this step, in nats per
            token.
    """

    data_parallel = True

    def __init__(self, *args: Any, target_kl: Positive | None = None, **kwargs: Any) -> None:
        self.target_kl = target_kl
        super().__init__(*args, **kwargs)
