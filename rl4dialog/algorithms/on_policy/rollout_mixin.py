"""What makes a stable-baselines3 on-policy algorithm train a language model: rollouts of whole replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import Unpack

from rl4dialog.algorithms.on_policy.arguments import OnPolicyArguments
from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.sb3_workers import deaths_told
from rl4dialog.functional.distributed import (
    all_gather_object,
    all_reduce_max,
    all_reduce_numbers,
    broadcast,
    n_processes,
    process_index,
)
from rl4dialog.policies.deepspeed_steps import use_deepspeed
from rl4dialog.policies.gradient_steps import StepGuard
from rl4dialog.policies.sharding import shard_policy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import FixedKLController, KLController


class LMRolloutMixin:
    """Put before a subclass of stable-baselines3's ``OnPolicyAlgorithm``; its ``train()`` then sees whole replies.

    ``rollout_buffer.get(batch_size)`` yields :class:`~rl4dialog.functional.replies.ReplySamples`, on which
    ``policy.evaluate_actions(samples.observations, samples.actions)`` gives one value, log-probability and entropy
    per agent token, in the order of ``samples.advantages`` and the rest.

    An iteration collects at least ``n_steps * n_envs`` agent tokens in whole episodes, and counts as exactly that many
    timesteps, so ``learn(n_iters * n_steps * n_envs)`` runs ``n_iters`` iterations; ``rollout/tokens`` logs the true
    number. ``num_timesteps`` grows with the tokens while they are collected, as callbacks expect: in multiples of
    ``n_envs``, and up to the full number at the last step of the environments and not before. A rollout that a callback
    ends half way is dropped, and its timesteps with it.

    Attributes:
        buffer_class: A subclass's own kind of rollout buffer.
        needs_critic: Whether values are used at all.
        maskable: Whether the policy must be a maskable one, or must not.
        group_size: Neighbouring environments that are given the same prompts in the same order.
        data_parallel: Whether ``train()`` adds up losses and gradients over the processes of a run.
        stop_requested: Set by a callback between iterations, it lets no further rollout begin. Of several processes,
            all stop where one requests it.

    Args:
        args: Of the algorithm.
        kl_controller: Price of a nat of divergence from the reference; free by default.
        collector: Collects the rollouts; by default all rewards come from the environments.
        normalize_rewards: Whiten the rewards of an iteration.
        on_nan_gradient: ``skip`` and count an optimizer step whose gradient is not finite (ten in a row end the run),
            or ``raise`` at once.
        sharding: What spreads the policy over the processes of the run: ``"fsdp"``, ``"deepspeed"`` or nothing.
        kwargs: Of the algorithm, of which many have these, in stable-baselines3's names:
        learning_rate: Of policy and critic.
        n_steps: Agent tokens per environment and iteration, at least.
        batch_size: Agent tokens per minibatch, about: replies are never split.
        n_epochs: Passes over an iteration's replies.
        gamma: Discount per agent token.
        gae_lambda: Of generalized advantage estimation: 1 has no bias by the critic, 0 the least variance.
        clip_range: How far the ratio of new to old probability may move from 1 and still gain.
        clip_range_vf: The same for values; nothing clips them by default.
        normalize_advantage: Subtract the mean of the minibatch's advantages and divide by their deviation.
        ent_coef: Weight of the entropy in the loss.
        vf_coef: Weight of the value loss.
        max_grad_norm: Gradients with a larger norm are scaled down to it.
        target_kl: An update stops where the policy has moved about so far from that of the rollout, in nats per token.
        device: ``auto`` is a GPU where there is one, else the CPU.
    """

    buffer_class: type[SequenceRolloutBuffer] = SequenceRolloutBuffer
    needs_critic = True
    maskable = False
    group_size = 1
    data_parallel = False
    stop_requested = False
    _rollout_began_at: int | None = None

    def __init__(
        self,
        *args: Any,
        kl_controller: KLController | None = None,
        collector: RolloutCollector | None = None,
        normalize_rewards: bool = False,
        on_nan_gradient: Literal["skip", "raise"] = "skip",
        sharding: str | None = None,
        **kwargs: Unpack[OnPolicyArguments],
    ) -> None:
        self._sharding = sharding
        self._step_guard = StepGuard(on_nan_gradient)
        self.kl_controller = kl_controller or FixedKLController(0.0)
        self.collector = collector or RolloutCollector()
        buffer = {
            "rollout_buffer_class": self.buffer_class,
            "rollout_buffer_kwargs": {"normalize_rewards": normalize_rewards, **self._buffer_kwargs()},
        }
        super().__init__(*args, **{**kwargs, **buffer})

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        """Check what no signature can say of the arguments of a config.

        Raises:
            ConfigError: If they do not fit.
        """

    @property
    def iteration(self) -> int:
        """How many iterations have been collected; not counting one under way."""
        algorithm: Any = self
        n_timesteps = algorithm.num_timesteps if self._rollout_began_at is None else self._rollout_began_at
        return int(n_timesteps // (algorithm.n_steps * algorithm.n_envs))

    def _buffer_kwargs(self) -> dict[str, Any]:
        """Further arguments of the rollout buffer."""
        return {}

    def _reward_kl_coeff(self) -> float:
        """What a nat of divergence costs in the reward."""
        return self.kl_controller.coeff

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed everything: each process its own, and environments of a group alike, so that they draw the same prompts.

        Environments are numbered over all processes, so that each draws the same prompts however they are spread.
        """
        algorithm: Any = self
        if (self.group_size == 1 and n_processes() == 1) or algorithm.env is None:
            super().set_random_seed(seed)  # type: ignore[misc]
            return
        seed = all_gather_object(int(np.random.default_rng().integers(2**31)))[0] if seed is None else seed
        super().set_random_seed(seed + process_index())  # type: ignore[misc]
        first = process_index() * algorithm.env.num_envs
        # What VecEnv.seed() sets and the next reset() hands out; it has no way to give two environments one seed.
        algorithm.env._seeds = [seed + (first + i) // self.group_size for i in range(algorithm.env.num_envs)]

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        """Begin the first episodes."""
        with deaths_told(self.env):  # type: ignore[attr-defined]
            return super()._setup_learn(*args, **kwargs)  # type: ignore[misc,no-any-return]

    def _setup_model(self) -> None:
        """Build the policy; all processes start from the main one's."""
        super()._setup_model()  # type: ignore[misc]
        policy: Any = self.policy  # type: ignore[attr-defined]
        broadcast([*policy.parameters(), *policy.buffers()])
        if self._sharding == "fsdp":
            shard_policy(policy)
        elif self._sharding == "deepspeed":
            use_deepspeed(policy, self.max_grad_norm)  # type: ignore[attr-defined]
        policy.gradient_steps.guard = self._step_guard
        self.rollout_buffer.whitened = getattr(self, "normalize_advantage", False)  # type: ignore[attr-defined]

    def train(self) -> None:
        """Update on the collected rollout as the algorithm does, but for steps whose gradient is not finite."""
        algorithm: Any = self
        with self._step_guard.around(algorithm.policy.optimizer):
            super().train()  # type: ignore[misc]
        self._record_idle_steps()

    def _record_idle_steps(self) -> None:
        """Log the steps that were left out, and the share of advantages that had nothing to say."""
        algorithm: Any = self
        algorithm.logger.record("train/skipped_steps", self._step_guard.n_skipped)
        found = algorithm.rollout_buffer.found_constant
        n_constant, n_compared = all_reduce_numbers(sum(found), len(found))
        if n_compared:
            algorithm.logger.record("train/constant_advantages", n_constant / n_compared)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: SequenceRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with whole episodes, charge the KL penalty, compute advantages; log as ``rollout/``."""
        algorithm: Any = self
        algorithm.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        if all_reduce_max(int(self.stop_requested)):
            self.stop_requested = False
            return False
        n_timesteps = n_rollout_steps * env.num_envs
        began_at = algorithm.num_timesteps

        def on_step(step: dict[str, Any], n_tokens: int, is_last: bool) -> bool:
            so_far = min(n_tokens // env.num_envs * env.num_envs, n_timesteps - env.num_envs)
            algorithm.num_timesteps = began_at + (n_timesteps if is_last else so_far)
            callback.update_locals(step)
            goes_on = callback.on_step()
            if not goes_on and n_processes() > 1:  # the others are elsewhere in their rollouts: all stop after them
                self.stop_requested = True
                return True
            return goes_on

        stats = None
        self._rollout_began_at = began_at
        try:
            with deaths_told(env):
                stats, algorithm._last_obs = self.collector.collect(
                    algorithm.policy,
                    env,
                    rollout_buffer,
                    algorithm._last_obs,
                    n_timesteps,
                    on_step,
                    self.group_size,
                    self.iteration + 1,
                )
        finally:
            self._rollout_began_at = None
            algorithm.num_timesteps = began_at + (n_timesteps if stats is not None else 0)
        if stats is None:
            return False
        rollout_buffer.compute_rewards(self._reward_kl_coeff(), algorithm.policy.precision)
        rollout_buffer.compute_returns_and_advantage()

        algorithm._update_info_buffer([{"episode": episode} for episode in stats.episodes], np.array([]))
        for name, value in {**stats.means, **stats.seconds}.items():
            algorithm.logger.record(name, value)
        algorithm.logger.record("rollout/kl_coeff", self.kl_controller.coeff)
        algorithm.logger.record("rollout/kl_is_rounding", float(rollout_buffer.kl_is_rounding))
        algorithm.logger.record("rollout/constant_rewards", float(rollout_buffer.constant_rewards))
        self.kl_controller.step(stats.means["rollout/kl"], int(stats.means["rollout/tokens"]))
        callback.update_locals(locals())
        callback.on_rollout_end()
        self._step_guard.begin_iteration(self.iteration)
        algorithm.policy.weights_will_change()  # whatever comes next is trained on this rollout
        return True


def with_rollouts(algorithm: Any) -> Any:
    """An algorithm's class with rollouts of whole replies: itself, if it has them.

    Raises:
        ConfigError: If it is no on-policy algorithm of stable-baselines3.
    """
    if not isinstance(algorithm, type) or not issubclass(algorithm, OnPolicyAlgorithm):
        raise ConfigError(
            f"alg.id names {algorithm!r}, which is no algorithm: it must derive from stable-baselines3's "
            f"OnPolicyAlgorithm"
        )
    if issubclass(algorithm, LMRolloutMixin):
        return algorithm
    described = {"__doc__": algorithm.__doc__, "__module__": algorithm.__module__}
    return type(algorithm.__name__, (LMRolloutMixin, algorithm), described)
