"""GDPL: PPO on a reward learned from demonstrations."""

import numpy as np
import pytest
import torch
from copying_env import copying_envs
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rl4dialog.algorithms.turn_level.gdpl import GDPL, RewardEstimator


def algorithm(length=1, truncates=False, **kwargs):
    envs = copying_envs(length=length, truncates=truncates)
    built = GDPL("MlpPolicy", envs, n_steps=16, batch_size=8, seed=0, device="cpu", **kwargs)
    built.set_logger(Logger(folder=None, output_formats=[]))
    return built


def test_shaping_is_the_change_of_the_potential_and_zero_after_the_end():
    estimator = RewardEstimator(3, 2, gamma=0.9, width=8, is_discrete=False)
    s, a, following = torch.rand(5, 3), torch.rand(5, 2), torch.rand(5, 3)
    base = estimator.g(torch.cat([s, a], 1)).squeeze(1)
    h, h_next = estimator.h(s).squeeze(1), estimator.h(following).squeeze(1)
    torch.testing.assert_close(estimator(s, a, following, torch.zeros(5)), base + 0.9 * h_next - h)
    torch.testing.assert_close(estimator(s, a, following, torch.ones(5)), base - h)


def test_numbered_actions_are_one_hot():
    estimator = RewardEstimator(3, 4, gamma=0.9, width=8, is_discrete=True)
    s, dones = torch.rand(2, 3), torch.zeros(2)
    one_hot = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 1]])
    expected = estimator.g(torch.cat([s, one_hot], 1)).squeeze(1) + 0.9 * estimator.h(s).squeeze(1)
    torch.testing.assert_close(estimator(s, torch.tensor([1.0, 3.0]), s, dones), expected - estimator.h(s).squeeze(1))


def test_policy_waits_for_the_estimator():
    built = algorithm(estimator_warmup_iters=2)
    weights = [p.clone() for p in built.policy.action_net.parameters()]
    estimator = [p.clone() for p in built.policy.estimator.parameters()]
    built.learn(2 * built.timesteps_per_iteration, log_interval=None)
    assert all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(estimator, built.policy.estimator.parameters(), strict=True))
    built.learn(built.timesteps_per_iteration, log_interval=None, reset_num_timesteps=False)
    assert not all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))


class LastSeen(BaseCallback):
    """Ends of episodes by step and environment: the last observation if it is truncated, otherwise none."""

    def __init__(self):
        super().__init__()
        self.ends = {}

    def _on_step(self):
        for env, info in enumerate(self.locals["infos"]):
            if self.locals["dones"][env]:
                cut = info["TimeLimit.truncated"]
                self.ends[self.locals["n_steps"], env] = info["terminal_observation"] if cut else None
        return True


@pytest.mark.parametrize("truncates", [False, True])
def test_advantages_are_those_of_a_loop_on_the_learned_reward(truncates):
    built, seen = algorithm(estimator_warmup_iters=100, length=4, truncates=truncates), LastSeen()
    built.learn(built.timesteps_per_iteration, seen, log_interval=None)
    assert sum(end is not None for end in seen.ends.values()) == (4 if truncates else 0) and (15, 1) in seen.ends
    buffer, policy, factor = built.rollout_buffer, built.policy, built.gamma * built.gae_lambda

    def value_of(observation):
        return float(policy.predict_values(torch.as_tensor(observation)[None]))

    with torch.no_grad():
        for env in range(2):
            advantage = after = 0.0
            for t in reversed(range(16)):
                observation, action = (
                    torch.as_tensor(x[t, env])[None].float() for x in (buffer.observations, buffer.actions)
                )
                ends, cut = (t, env) in seen.ends, seen.ends.get((t, env))
                following = cut if cut is not None else buffer.observations[min(t + 1, 15), env]
                dones = torch.tensor([float(ends and cut is None)])
                reward = policy.estimator(observation, action, torch.as_tensor(following)[None].float(), dones)
                reward = float(reward - policy.get_distribution(observation).log_prob(action))
                if ends:
                    advantage, after = 0.0, 0.0 if cut is None else value_of(cut)
                value = value_of(observation[0])
                advantage = reward + built.gamma * after - value + factor * advantage
                after = value
                np.testing.assert_allclose(buffer.advantages[t, env], advantage, rtol=1e-4, atol=1e-5)
