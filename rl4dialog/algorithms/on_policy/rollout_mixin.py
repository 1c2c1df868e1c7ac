"""What makes a stable-baselines3 on-policy algorithm train a language model: rollouts of whole replies."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import ConfigError
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import FixedKLController, KLController


class LMRolloutMixin:
    """Put before a subclass of stable-baselines3's ``OnPolicyAlgorithm``; its ``train()`` then sees whole replies.

    ``rollout_buffer.get(batch_size)`` yields :class:`~rl4dialog.rollouts.buffer.SequenceSamples`, on which
    ``policy.evaluate_actions(samples.observations, samples.actions)`` gives one value, log-probability and entropy
    per agent token, in the order of ``samples.advantages`` and the rest.

    An iteration collects at least ``n_steps * n_envs`` agent tokens in whole episodes, and counts as exactly that many
    timesteps, so ``learn(n_iters * n_steps * n_envs)`` runs ``n_iters`` iterations; ``rollout/tokens`` logs the true
    number.

    Args:
        args: Of the algorithm.
        kl_controller: Price of a nat of divergence from the reference; free by default.
        collector: Collects the rollouts; by default all rewards come from the environments.
        normalize_rewards: Whiten the rewards of an iteration.
        kwargs: Of the algorithm.
    """

    def __init__(
        self,
        *args: Any,
        kl_controller: KLController | None = None,
        collector: RolloutCollector | None = None,
        normalize_rewards: bool = False,
        **kwargs: Any,
    ) -> None:
        self.kl_controller = kl_controller or FixedKLController(0.0)
        self.collector = collector or RolloutCollector()
        kwargs["rollout_buffer_class"] = SequenceRolloutBuffer
        kwargs["rollout_buffer_kwargs"] = {"normalize_rewards": normalize_rewards}
        for name in ("gamma", "gae_lambda"):
            if not 0 <= kwargs.get(name, 1.0) <= 1:
                raise ConfigError(f"{name} must lie between 0 and 1, not {kwargs[name]!r}")
        super().__init__(*args, **kwargs)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: SequenceRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with whole episodes, charge the KL penalty, compute advantages; log as ``rollout/``."""
        algorithm: Any = self
        algorithm.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        n_timesteps = n_rollout_steps * env.num_envs

        def on_step() -> bool:
            callback.update_locals(locals())
            return callback.on_step()

        stats, algorithm._last_obs = self.collector.collect(
            algorithm.policy, env, rollout_buffer, algorithm._last_obs, n_timesteps, on_step
        )
        if stats is None:
            return False
        algorithm.num_timesteps += n_timesteps
        rollout_buffer.compute_rewards(self.kl_controller.coeff)
        rollout_buffer.compute_returns_and_advantage()

        algorithm._update_info_buffer([{"episode": episode} for episode in stats.episodes], np.array([]))
        for name, value in {**stats.means, **stats.seconds}.items():
            algorithm.logger.record(name, value)
        algorithm.logger.record("rollout/kl_coeff", self.kl_controller.coeff)
        self.kl_controller.step(stats.kl, stats.n_tokens)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True
