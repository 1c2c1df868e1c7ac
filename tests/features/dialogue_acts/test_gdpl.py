"""GDPL: PPO on a reward learned from demonstrations."""

import copy

import numpy as np
import pytest
import torch
from copying_env import copying_envs
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.algorithms.gdpl import GDPL, RewardEstimator


def algorithm(length=1, truncates=False, **kwargs):
    envs = copying_envs(length=length, truncates=truncates)
    built = GDPL("MlpPolicy", envs, n_steps=16, batch_size=8, seed=0, device="cpu", **kwargs)
    built.set_logger(Logger(folder=None, output_formats=[]))
    return built


def test_reward_is_g_and_the_log_probability_under_the_first_policy_less_that_under_the_present_one():
    built = algorithm(estimator_warmup_iters=1)
    built.learn(built.timesteps_per_iteration, log_interval=None)
    turns = tuple(torch.randint(2, (5, 4)).float() for _ in range(3))
    before = built.policy.get_distribution(turns[0]).log_prob(turns[1])
    inputs, log_odds = built.policy.estimator.log_odds(turns, built.policy)
    torch.testing.assert_close(inputs, torch.cat(turns, 1))
    torch.testing.assert_close(log_odds, torch.zeros(5))
    built.learn(2 * built.timesteps_per_iteration, log_interval=None, reset_num_timesteps=False)
    log_odds = built.policy.estimator.log_odds(turns, built.policy)[1]
    torch.testing.assert_close(log_odds, before - built.policy.get_distribution(turns[0]).log_prob(turns[1]))
    assert log_odds.abs().max() > 0


class Uniform(torch.nn.Module):
    """A policy of four numbered actions."""

    def get_distribution(self, observations):
        return torch.distributions.Categorical(logits=torch.zeros(len(observations), 4))


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=["of a log", "of a buffer"])
def test_numbered_actions_are_one_hot(shape):
    estimator = RewardEstimator(3, 4, width=8, is_discrete=True, policy=Uniform())
    s, following = torch.rand(2, 3), torch.rand(2, 3)
    one_hot = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 1]])
    inputs, log_odds = estimator.log_odds((s, torch.tensor([1.0, 3.0]).view(shape), following), Uniform())
    torch.testing.assert_close(inputs, torch.cat([s, one_hot, following], 1))
    torch.testing.assert_close(log_odds, torch.zeros(2))


def test_estimator_finds_the_turns_of_the_log():
    built = algorithm(estimator_warmup_iters=100, estimator_learning_rate=0.01, estimator_gradient_penalty=0.0)
    built.learn(40 * built.timesteps_per_iteration, log_interval=None)
    copied = torch.randint(2, (64, 4)).float()
    odds = [built.policy.estimator.g(torch.cat([copied, a, copied], 1)).mean() for a in (copied, 1 - copied)]
    assert odds[0] > odds[1] + 1


def test_gradient_penalty_flattens_g():
    def slope(penalty):
        built = algorithm(estimator_warmup_iters=100, estimator_learning_rate=0.01, estimator_gradient_penalty=penalty)
        built.learn(20 * built.timesteps_per_iteration, log_interval=None)
        inputs = torch.rand(32, 12, generator=torch.Generator().manual_seed(0)).requires_grad_()
        return float(torch.autograd.grad(built.policy.estimator.g(inputs).sum(), inputs)[0].square().sum(1).mean())

    assert slope(10.0) < slope(0.0) / 2


def test_demonstrations_of_one_turn_are_refused():
    envs = copying_envs()
    envs.envs[0].demonstrations = lambda: (np.zeros((3, 4)), np.zeros((3, 4)), np.ones(3))
    with pytest.raises(ConfigError, match="more than one turn"):
        GDPL("MlpPolicy", envs, device="cpu")


def test_policy_waits_for_the_estimator():
    built = algorithm(estimator_warmup_iters=2)
    weights = [p.clone() for p in built.policy.action_net.parameters()]
    others = [p.clone() for p in (*built.policy.estimator.g.parameters(), *built.policy.value_net.parameters())]
    built.learn(2 * built.timesteps_per_iteration, log_interval=None)
    assert all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))
    now = [*built.policy.estimator.g.parameters(), *built.policy.value_net.parameters()]
    assert all(p.grad is None for p in built.policy.estimator.g.parameters()), "PPO would clip their norm with its own"
    assert not any(torch.equal(a, b) for a, b in zip(others, now, strict=True))
    built.learn(built.timesteps_per_iteration, log_interval=None, reset_num_timesteps=False)
    assert not all(torch.equal(a, b) for a, b in zip(weights, built.policy.action_net.parameters(), strict=True))


class LastSeen(BaseCallback):
    """Ends of episodes by step and environment: the last observation, and whether it was truncated."""

    def __init__(self):
        super().__init__()
        self.ends = {}

    def _on_step(self):
        for env, info in enumerate(self.locals["infos"]):
            if self.locals["dones"][env]:
                cut = info["TimeLimit.truncated"]
                self.ends[self.locals["n_steps"], env] = (info["terminal_observation"], cut)
        return True


@pytest.mark.parametrize("truncates", [False, True])
def test_advantages_are_those_of_a_loop_on_the_learned_reward(truncates):
    built, seen = algorithm(estimator_warmup_iters=100, length=3, truncates=truncates), LastSeen()
    n = built.timesteps_per_iteration
    built.learn(2 * n, log_interval=None)  # in which episodes end elsewhere than in the third iteration
    values = copy.deepcopy(built.policy)  # those of the rollout; its training moves them
    built.learn(n, seen, log_interval=None, reset_num_timesteps=False)
    assert sum(cut for _, cut in seen.ends.values()) == (6 if truncates else 0)
    assert {t for t, _ in seen.ends} == {0, 3, 6, 9, 12, 15}
    buffer, factor = built.rollout_buffer, built.gamma * built.gae_lambda
    # After training, the rows of an environment follow each other.
    observed, acted, advantages = (
        torch.as_tensor(x).view(2, 16, -1).transpose(0, 1)
        for x in (buffer.observations, buffer.actions, buffer.advantages)
    )
    following = torch.cat([observed[1:], observed[:1]])  # row 15 is an end
    for place, (observation, _) in seen.ends.items():
        following[place] = torch.as_tensor(observation)
    turns = tuple(x.reshape(-1, 4).float() for x in (observed, acted, following))
    with torch.no_grad():
        rewards = built.policy.estimator.g(torch.cat(turns, 1)).view(16, 2)  # the policy is still the first one
        rewards -= rewards.mean()
        for env in range(2):
            advantage = after = 0.0
            for t in reversed(range(16)):
                if (t, env) in seen.ends:
                    last, cut = seen.ends[t, env]
                    advantage = 0.0
                    after = float(values.predict_values(torch.as_tensor(last)[None].float())) if cut else 0.0
                value = float(values.predict_values(observed[t, env][None].float()))
                advantage = float(rewards[t, env]) + built.gamma * after - value + factor * advantage
                after = value
                np.testing.assert_allclose(advantages[t, env], [advantage], rtol=1e-4, atol=1e-5)
