"""Behaviour cloning: maximum likelihood of the actions of a corpus, as an algorithm and as a warm start."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rl4dialog.algorithms.turn_level.iterations import OnPolicyIterations
from rl4dialog.core.arguments import Count, NonNegative, Positive
from rl4dialog.core.errors import ConfigError

Demonstrations = tuple[Tensor, Tensor, Tensor]
"""Observations and actions of turns in the order of their dialogues, and 1 for the last turn of each dialogue."""


class BehaviourCloning(OnPolicyIterations, A2C):
    """Imitation of the environment's demonstrations, one epoch in each iteration.

    The loss is the mean of -log π(a|s) minus the entropy bonus. The rollouts of an iteration are only for statistics.

    Args:
        policy: An actor-critic policy.
        env: Environments with a method ``demonstrations()``, which returns observations, actions
            and ends of dialogues.
        learning_rate: Learning rate of Adam.
        batch_size: Turns per optimizer step.
        n_steps: Steps of each environment in the rollouts of an iteration.
        ent_coef: Coefficient of the entropy.
        max_grad_norm: Largest norm of the gradient.
        kwargs: Other arguments of A2C.
    """

    def __init__(
        self,
        policy: Any,
        env: VecEnv,
        learning_rate: Any = 1e-3,
        batch_size: Count = 32,
        n_steps: Count = 4,
        ent_coef: NonNegative = 0.0,
        max_grad_norm: Positive = 10.0,
        **kwargs: Any,
    ) -> None:
        arguments = {"learning_rate": learning_rate, "n_steps": n_steps, "ent_coef": ent_coef}
        super().__init__(policy, env, max_grad_norm=max_grad_norm, use_rms_prop=False, **arguments, **kwargs)
        self._batch_size = batch_size
        self._demonstrations = demonstrations_of(self)

    def train(self) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = _epoch(self.policy, self._demonstrations, self._batch_size, self.ent_coef, self.max_grad_norm)
        self._n_updates += len(losses)
        self.logger.record("train/loss", float(np.mean(losses)))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")


def warm_start_by_cloning(
    algorithm: Any,
    n_epochs: Count = 10,
    batch_size: Count = 32,
    learning_rate: Positive = 1e-3,
    max_grad_norm: Positive = 10.0,
) -> None:
    """Imitate the environment's demonstrations before the first iteration.

    The policy's own optimizer is not used.

    Args:
        algorithm: An on-policy algorithm.
        n_epochs: Epochs over the demonstrations.
        batch_size: Turns per optimizer step.
        learning_rate: Learning rate of Adam.
        max_grad_norm: Largest norm of the gradient.

    Raises:
        ConfigError: If the algorithm has no policy with probabilities, or the environment no demonstrations.
    """
    policy = algorithm.policy
    if not isinstance(policy, (ActorCriticPolicy, MaskableActorCriticPolicy)):
        raise ConfigError(
            f"warm_start.id: bc trains the policy of an on-policy algorithm; {type(algorithm).__name__} has none. Use "
            f"warm_start.id: replay"
        )
    demonstrations = demonstrations_of(algorithm)
    own = policy.optimizer
    policy.optimizer = torch.optim.Adam(policy.parameters(), learning_rate)
    policy.set_training_mode(True)
    try:
        for _ in range(n_epochs):
            _epoch(policy, demonstrations, batch_size, 0.0, max_grad_norm)
    finally:
        policy.optimizer = own


def demonstrations_of(algorithm: Any) -> Demonstrations:
    """What the environment's ``demonstrations()`` returns, as tensors on the device of the policy.

    Raises:
        ConfigError: If the environment has no such method, or there are none.
    """
    try:
        arrays = algorithm.env.env_method("demonstrations", indices=[0])[0]
    except AttributeError as error:
        raise ConfigError(
            "imitation (alg.id: bc, warm_start.id: bc) needs an environment with a method demonstrations()"
        ) from error
    observations, actions, dones = (torch.as_tensor(array, device=algorithm.device).float() for array in arrays)
    if not len(actions):
        raise ConfigError("the environment's demonstrations() returned no turns, so there is nothing to imitate")
    return observations, actions, dones


def _epoch(
    policy: ActorCriticPolicy | MaskableActorCriticPolicy,
    demonstrations: Demonstrations,
    batch_size: int,
    ent_coef: float,
    max_grad_norm: float,
) -> list[float]:
    """One epoch in random order; returns the mean of -log π(a|s) of each optimizer step."""
    observations, actions, _ = demonstrations
    return [
        _step(policy, observations[rows], actions[rows], ent_coef, max_grad_norm)
        for rows in torch.randperm(len(observations)).split(batch_size)
    ]


def _step(
    policy: ActorCriticPolicy | MaskableActorCriticPolicy,
    observations: Tensor,
    actions: Tensor,
    ent_coef: float,
    max_grad_norm: float,
) -> float:
    """One optimizer step; returns the mean of -log π(a|s)."""
    distribution = policy.get_distribution(observations)
    negative_log_prob = -distribution.log_prob(actions).mean()
    loss = negative_log_prob
    if ent_coef:
        loss = loss - ent_coef * cast(Tensor, distribution.entropy()).mean()
    policy.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    policy.optimizer.step()
    return float(negative_log_prob.detach())
