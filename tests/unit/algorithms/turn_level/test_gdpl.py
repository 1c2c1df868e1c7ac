"""GDPL: PPO on a reward learned from demonstrations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from copying_env import copying_envs
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import obs_as_tensor

from rl4dialog.algorithms.turn_level.gdpl import GDPL, RewardEstimator


def algorithm(**kwargs: Any) -> GDPL:
    built = GDPL("MlpPolicy", copying_envs(), n_steps=16, batch_size=8, seed=0, device="cpu", **kwargs)
    built.set_logger(Logger(folder=None, output_formats=[]))
    return built


def test_shaping_is_the_change_of_the_potential_and_zero_after_the_end() -> None:
    estimator = RewardEstimator(3, 2, gamma=0.9, width=8, is_discrete=False)
    s, a, following = torch.rand(5, 3), torch.rand(5, 2), torch.rand(5, 3)
    base = estimator.g(torch.cat([s, a], 1)).squeeze(1)
    h, h_next = estimator.h(s).squeeze(1), estimator.h(following).squeeze(1)
    torch.testing.assert_close(estimator(s, a, following, torch.zeros(5)), base + 0.9 * h_next - h)
    torch.testing.assert_close(estimator(s, a, following, torch.ones(5)), base - h)


def test_numbered_actions_are_one_hot() -> None:
    estimator = RewardEstimator(3, 4, gamma=0.9, width=8, is_discrete=True)
    s, dones = torch.rand(2, 3), torch.zeros(2)
    one_hot = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 1]])
    expected = estimator.g(torch.cat([s, one_hot], 1)).squeeze(1) + 0.9 * estimator.h(s).squeeze(1)
    torch.testing.assert_close(estimator(s, torch.tensor([1.0, 3.0]), s, dones), expected - estimator.h(s).squeeze(1))


def test_policy_waits_for_the_estimator() -> None:
    built = algorithm(estimator_warmup_iters=2)
    weights = [p.clone() for p in built.policy.action_net.parameters()]
    estimator = [p.clone() for p in built.policy.estimator.parameters()]
    built.learn(2 * built.timesteps_per_iteration, log_interval=None)
    assert all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(estimator, built.policy.estimator.parameters(), strict=True))
    built.learn(built.timesteps_per_iteration, log_interval=None, reset_num_timesteps=False)
    assert not all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))


def test_advantages_are_those_of_the_rollout_buffer_on_the_learned_reward() -> None:
    built = algorithm(estimator_warmup_iters=100)
    built.learn(built.timesteps_per_iteration, log_interval=None)
    buffer = built.rollout_buffer
    judge = RolloutBuffer(
        16, built.observation_space, built.action_space, "cpu", built.gae_lambda, built.gamma, n_envs=2
    )
    with torch.no_grad():
        for t in range(16):
            observation, action = (
                torch.as_tensor(buffer.observations[t]).float(),
                torch.as_tensor(buffer.actions[t]).float(),
            )
            is_last = t == 15
            following = torch.as_tensor(built._last_obs if is_last else buffer.observations[t + 1]).float()  # type: ignore[arg-type]
            dones = torch.as_tensor(built._last_episode_starts if is_last else buffer.episode_starts[t + 1]).float()  # type: ignore[arg-type]
            log_probs = built.policy.get_distribution(observation).log_prob(action)
            reward = built.policy.estimator(observation, action, following, dones) - log_probs
            values = built.policy.predict_values(observation)
            judge.add(observation.numpy(), action.numpy(), reward.numpy(), buffer.episode_starts[t], values, log_probs)
        last = built.policy.predict_values(obs_as_tensor(built._last_obs, built.device))  # type: ignore[arg-type]
    judge.compute_returns_and_advantage(last, np.asarray(built._last_episode_starts))
    np.testing.assert_allclose(buffer.advantages, judge.advantages, rtol=1e-4, atol=1e-5)
    assert judge.rewards.std() > 0
