"""Behaviour cloning: maximum likelihood of the actions of a corpus, as an algorithm and as a warm start."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rl4dialog.core.arguments import Count, Epochs, Fraction, LearningRate, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.algorithms.iterations import OnPolicyIterations

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
        learning_rate: LearningRate = 1e-3,
        batch_size: Count = 32,
        n_steps: Count = 4,
        ent_coef: NonNegative = 0.0,
        max_grad_norm: Positive = 10.0,
        **kwargs: Any,
    ) -> None:
        limits: dict[str, Any] = {"ent_coef": ent_coef, "max_grad_norm": max_grad_norm}
        super().__init__(policy, env, learning_rate, n_steps, use_rms_prop=False, **limits, **kwargs)
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
    n_epochs: Epochs = 10,
    batch_size: Count = 32,
    learning_rate: LearningRate = 1e-3,
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
        what = f"the policy of an on-policy algorithm; {type(algorithm).__name__} has none"
        raise ConfigError(f"warm_start.id: bc trains {what}. Use warm_start.id: replay")
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
    """What the environment's ``demonstrations()`` returns, as tensors on the device of the policy."""
    try:
        arrays = algorithm.env.env_method("demonstrations", indices=[0])[0]
    except AttributeError as error:
        users = "alg.id: bc, warm_start.id: bc"
        raise ConfigError(f"imitation ({users}) needs an environment with a method demonstrations()") from error
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
    found = []
    for rows in torch.randperm(len(observations)).split(batch_size):
        distribution = policy.get_distribution(observations[rows])
        loss = negative_log_prob = -distribution.log_prob(actions[rows]).mean()
        if ent_coef:
            loss = loss - ent_coef * cast(Tensor, distribution.entropy()).mean()
        policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        policy.optimizer.step()
        found.append(float(negative_log_prob.detach()))
    return found


def warm_start_by_replay(
    algorithm: Any, policy: Literal["rule"] = "rule", n_turns: Count = 5000, exploration: Fraction = 0.1
) -> None:
    """Fill the replay buffer with turns of the environment's rule policy before the first iteration.

    Without them, DQN rarely sees a successful dialogue (BBQ networks, Lipton et al. 2018, arXiv 1608.05081, call this
    replay buffer spiking). These steps do not count as timesteps of the run.

    Args:
        algorithm: An off-policy algorithm.
        policy: The demonstrator: ``rule`` for the environment's ``rule_action()``.
        n_turns: Number of turns to store.
        exploration: Share of turns with a random action instead.

    Raises:
        ConfigError: If the algorithm has no replay buffer, the buffer is too small, or the environment no rule policy.
    """
    if not isinstance(algorithm, OffPolicyAlgorithm):
        what = f"a replay buffer; {type(algorithm).__name__} has none"
        raise ConfigError(f"warm_start.id: replay fills {what}. Use warm_start.id: bc")
    env, buffer = algorithm.env, algorithm.replay_buffer
    assert env is not None and buffer is not None
    if n_turns > algorithm.buffer_size:
        size = algorithm.buffer_size
        raise ConfigError(f"warm_start.args.n_turns is {n_turns}, which is more than alg.args.buffer_size ({size})")
    algorithm._last_obs = env.reset()  # type: ignore[assignment]
    explore = algorithm.action_space.np_random
    for _ in range(-(-n_turns // env.num_envs)):
        try:
            chosen = env.env_method("rule_action")
        except AttributeError as error:
            raise ConfigError("warm_start.id: replay needs an environment with a method rule_action()") from error
        is_random = explore.random(env.num_envs) < exploration
        actions = np.array([algorithm.action_space.sample() if is_random[i] else a for i, a in enumerate(chosen)])
        observations, rewards, dones, infos = env.step(actions)
        algorithm._store_transition(buffer, actions, observations, rewards, dones, infos)  # type: ignore[arg-type]
    algorithm._last_obs = None  # learn() begins with new episodes
