"""Behaviour cloning, as an algorithm and as a warm start."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from copying_env import copying_envs
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.algorithms.behaviour_cloning import (
    BehaviourCloning,
    _epoch,
    demonstrations_of,
    warm_start_by_cloning,
)


def test_loss_is_binary_cross_entropy_summed_over_bits():
    policy = PPO("MlpPolicy", copying_envs(), seed=0, device="cpu").policy
    observations, actions = torch.rand(8, 4), torch.randint(0, 2, (8, 4)).float()
    with torch.no_grad():
        features = policy.mlp_extractor.forward_actor(policy.extract_features(observations))
        logits = policy.action_net(features)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, actions, reduction="none").sum(1).mean()
    demonstrations = observations, actions, torch.zeros(8)
    assert _epoch(policy, demonstrations, 8, 0.0, 10.0) == [pytest.approx(float(expected), rel=1e-6)]


def test_algorithm_learns_the_demonstrations():
    algorithm = BehaviourCloning(
        "MlpPolicy", copying_envs(), learning_rate=0.01, batch_size=8, n_steps=2, seed=0, device="cpu"
    )
    algorithm.set_logger(Logger(folder=None, output_formats=[]))
    algorithm.learn(100 * algorithm.timesteps_per_iteration, log_interval=None)
    observations, actions, _ = demonstrations_of(algorithm)
    chosen, _ = algorithm.predict(observations.numpy(), deterministic=True)
    np.testing.assert_array_equal(chosen, actions.numpy())
    assert algorithm.iteration == 100


def test_warm_start_leaves_the_optimizer_of_the_policy_as_it_was():
    algorithm = PPO("MlpPolicy", copying_envs(), seed=0, device="cpu")
    own, before = algorithm.policy.optimizer, [p.clone() for p in algorithm.policy.parameters()]
    warm_start_by_cloning(algorithm, n_epochs=2)
    assert algorithm.policy.optimizer is own
    assert not own.state
    assert any(not torch.equal(a, b) for a, b in zip(before, algorithm.policy.parameters(), strict=True))


def test_what_cannot_be_imitated_is_an_error():
    empty, none = copying_envs(), np.zeros((0, 4), np.int8)
    empty.envs[0].demonstrations = lambda: (none, none, none[:, 0])
    cart_pole = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    for cls, envs, message in (
        (PPO, copying_envs(has_demonstrations=False), r"needs an environment with a method demonstrations\(\)"),
        (PPO, empty, r"demonstrations\(\) returned no turns, so there is nothing to imitate"),
        (DQN, cart_pole, r"DQN has none\. Use warm_start.id: replay"),
    ):
        with pytest.raises(ConfigError, match=message):
            warm_start_by_cloning(cls("MlpPolicy", envs, device="cpu"))
