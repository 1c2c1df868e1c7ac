"""Iterations for plain algorithms of stable-baselines3 and sb3-contrib: collecting and training in turns."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from pydantic import Field, InstanceOf
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from rl4dialog.algorithms.on_policy.rollout_mixin import CommonArguments, OnPolicyArguments
from rl4dialog.algorithms.schedules import IterationSchedules
from rl4dialog.core.arguments import Count, Fraction, NonNegative, NonNegativeInt, Positive
from rl4dialog.core.errors import ConfigError


class OffPolicyArguments(CommonArguments, total=False):
    """Arguments of off-policy algorithms in stable-baselines3 and sb3-contrib. No algorithm has all of them."""

    buffer_size: Count
    learning_starts: NonNegativeInt
    tau: Fraction
    train_freq: Count
    gradient_steps: Annotated[int, Field(ge=-1)]
    optimize_memory_usage: Literal[False]
    target_update_interval: Count
    exploration_fraction: Annotated[float, Field(gt=0, le=1)]
    exploration_initial_eps: Fraction
    exploration_final_eps: Fraction
    max_grad_norm: Positive | None
    policy_delay: Count
    target_policy_noise: NonNegative
    target_noise_clip: NonNegative
    top_quantiles_to_drop_per_net: NonNegativeInt
    action_noise: NonNegative | InstanceOf[ActionNoise] | None
    use_sde_at_warmup: Literal[False]


# Loops that carry nothing from one rollout to the next but what a checkpoint holds.
_KNOWN_LOOPS = {OnPolicyAlgorithm.collect_rollouts, OffPolicyAlgorithm.collect_rollouts, MaskablePPO.collect_rollouts}


class IterationMixin:
    """Counts the iterations of an algorithm, and stops between them only.

    An iteration is one call of ``collect_rollouts`` and the training on what it collected. The algorithm itself is
    unchanged: it computes what it computes without this class. Use ``learn(..., log_interval=None)``, since the logger
    is cleared after each rollout here.
    """

    iteration = 0  # number of collected iterations
    stop_requested = False  # set by a callback to prevent the next rollout

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of all environments together."""
        raise NotImplementedError

    def _collected_nothing(self) -> Any:
        """The result of ``collect_rollouts`` that ends ``learn``."""
        raise NotImplementedError

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> Any:
        """Collect an iteration, log it under ``rollout/``, and clear the logger."""
        algorithm: Any = self
        callback.on_rollout_start()
        if self.stop_requested:
            self.stop_requested = False
            return self._collected_nothing()
        result = super().collect_rollouts(env, _Rollout(self, callback), *args, **kwargs)  # type: ignore[misc]
        algorithm.logger.dump(algorithm.num_timesteps)
        return result


class _Rollout:
    """A callback during one rollout, whose start it has already been called for."""

    def __init__(self, algorithm: Any, callback: BaseCallback) -> None:
        self._algorithm, self._callback = algorithm, callback
        self._began_s, self._began_at = time.perf_counter(), algorithm.num_timesteps
        self._returns: list[float] = []
        self._infos: list[dict[str, Any]] = []

    def on_rollout_start(self) -> None:
        pass

    def update_locals(self, locals_: dict[str, Any]) -> None:
        self._infos = locals_["infos"]
        self._callback.update_locals(locals_)

    def on_step(self) -> bool:
        self._returns += [info["episode"]["r"] for info in self._infos if "episode" in info]
        if not self._callback.on_step():
            self._algorithm.stop_requested = True  # after this iteration
        return True

    def on_rollout_end(self) -> None:
        algorithm = self._algorithm
        algorithm.iteration += 1
        logged = {
            "rollout/task_reward": safe_mean(self._returns),
            "rollout/n_episodes": len(self._returns),
            "rollout/timesteps": algorithm.num_timesteps - self._began_at,
            "rollout/ep_len_mean": safe_mean([episode["l"] for episode in algorithm.ep_info_buffer]),
            "time/collect_s": time.perf_counter() - self._began_s,
        }
        if algorithm.ep_success_buffer:
            logged["rollout/success_rate"] = safe_mean(algorithm.ep_success_buffer)
        for name, value in logged.items():
            algorithm.logger.record(name, value)
        self._callback.on_rollout_end()


class OnPolicyIterations(IterationSchedules, IterationMixin):
    """Iterations of ``n_steps`` steps of each environment."""

    def __init__(self, *args: Any, **kwargs: Unpack[OnPolicyArguments]) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[misc]

    @property
    def timesteps_per_iteration(self) -> int:
        algorithm: Any = self
        return int(algorithm.n_steps * algorithm.n_envs)

    def _collected_nothing(self) -> bool:
        return False


class OffPolicyIterations(IterationMixin):
    """Iterations of ``train_freq`` steps of each environment, and ``gradient_steps`` updates.

    Args:
        kwargs: Keyword arguments of the algorithm. A number as ``action_noise`` is the standard deviation of Gaussian
            noise on actions, which are scaled to [-1, 1].
    """

    def __init__(self, *args: Any, **kwargs: Unpack[OffPolicyArguments]) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[misc]
        algorithm: Any = self
        noise = kwargs.get("action_noise")
        if isinstance(noise, (int, float)):
            shape = algorithm.action_space.shape
            algorithm.action_noise = NormalActionNoise(np.zeros(shape), np.full(shape, noise))

    @property
    def timesteps_per_iteration(self) -> int:
        algorithm: Any = self
        return int(algorithm.train_freq.frequency * algorithm.n_envs)

    def _collected_nothing(self) -> RolloutReturn:
        return RolloutReturn(0, 0, continue_training=False)


def with_iterations(algorithm: Any) -> Any:
    """Add iterations to the class of an algorithm; a class that has them is returned unchanged."""
    if isinstance(algorithm, type) and issubclass(algorithm, IterationMixin):
        return algorithm
    bases = {OnPolicyAlgorithm: OnPolicyIterations, OffPolicyAlgorithm: OffPolicyIterations}
    mixin = next((bases[base] for base in getattr(algorithm, "__mro__", ()) if base in bases), None)
    if mixin is None:
        wanted = "must derive from stable-baselines3's OnPolicyAlgorithm or OffPolicyAlgorithm"
        raise ConfigError(f"alg.id names {algorithm!r}, which {wanted}")
    if algorithm.collect_rollouts not in _KNOWN_LOOPS:
        loop = f"a loop of its own ({algorithm.collect_rollouts.__qualname__})"
        what = f"{algorithm.__name__}, which collects rollouts in {loop}"
        raise ConfigError(f"alg.id names {what}: checkpoints would lack what it carries between rollouts")
    package = algorithm.__module__.partition(".")[0].replace("_", "-")
    described = {"__doc__": f"{algorithm.__name__} of {package}.", "__module__": algorithm.__module__}
    return type(algorithm.__name__, (mixin, algorithm), described)


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
    """Target values of the actions with the highest online values, minus infinity for others. Shape (B, actions)."""
    best = F.one_hot(online.argmax(dim=1), online.shape[1]).bool()
    return torch.where(best, target, -torch.inf)
