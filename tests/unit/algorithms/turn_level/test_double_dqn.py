"""Double DQN."""

from __future__ import annotations

import gymnasium as gym
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.algorithms.turn_level.iterations import DoubleDQN, chosen_by


def test_target_network_values_the_action_of_the_online_network() -> None:
    online, target = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]]), torch.tensor([[9.0, 1.0, 8.0], [2.0, 7.0, 7.0]])
    assert chosen_by(online, target).max(dim=1).values.tolist() == [1.0, 2.0]


def test_training_keeps_the_target_network() -> None:
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    algorithm = DoubleDQN("MlpPolicy", envs, learning_starts=8, train_freq=8, buffer_size=100, seed=0, device="cpu")
    algorithm.set_logger(Logger(folder=None, output_formats=[]))
    target = algorithm.q_net_target
    algorithm.learn(32)
    assert algorithm.q_net_target is target
    assert algorithm._n_updates > 0


def test_online_network_chooses_and_target_network_values(monkeypatch: pytest.MonkeyPatch) -> None:
    built = DoubleDQN("MlpPolicy", gym.make("CartPole-v1"), seed=0, device="cpu")
    random, observed, seen = (
        torch.Generator().manual_seed(0),
        torch.randn(64, 4, generator=torch.Generator().manual_seed(1)),
        [],
    )
    for network in (built.q_net, built.q_net_target):
        for parameter in network.parameters():
            parameter.data += torch.randn(parameter.shape, generator=random)
    monkeypatch.setattr(stable_baselines3.DQN, "train", lambda self, *_: seen.append(self.q_net_target(observed)))
    built.train(1)
    online, target = built.q_net(observed), built.q_net_target(observed)
    assert (online.argmax(dim=1) != target.argmax(dim=1)).any()
    torch.testing.assert_close(seen[0].amax(dim=1), target.gather(1, online.argmax(dim=1, keepdim=True)).squeeze(1))
