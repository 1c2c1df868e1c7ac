"""Plain algorithms get iterations, and compute what they compute without them."""

import gymnasium as gym
import pytest
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rl4dialog.algorithms.schedules import as_schedule
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.algorithms.iterations import DoubleDQN, with_iterations
from rl4dialog.features.dialogue_acts.gym_wrappers import ResumableEnv

ARGS = {
    "PPO": {"n_steps": 32, "batch_size": 16, "n_epochs": 2},
    "DQN": {"learning_starts": 40, "train_freq": 32, "gradient_steps": 3, "batch_size": 8, "buffer_size": 200},
}


def built(cls, name, **kwargs):
    env = ResumableEnv(gym.make("CartPole-v1"))
    algorithm = cls("MlpPolicy", env, seed=5, device="cpu", **ARGS[name], **kwargs)
    algorithm.set_logger(Logger(None, []))
    return algorithm


class Recorder(BaseCallback):
    """What callbacks see of the iterations; asks for an end in the middle of one."""

    def __init__(self, stops_at=None):
        super().__init__()
        self.seen = []
        self.logged = []
        self._stops_at = stops_at

    def _on_rollout_start(self):
        self.seen.append(("start", self.model.iteration, self.num_timesteps))

    def _on_step(self):
        return self._stops_at is None or self.num_timesteps < self._stops_at

    def _on_rollout_end(self):
        self.seen.append(("end", self.model.iteration))
        self.logged.append(dict(self.logger.name_to_value))


@pytest.mark.parametrize("name", ARGS)
def test_learns_what_the_plain_class_learns(name):
    plain = getattr(stable_baselines3, name)
    one = built(plain, name).learn(160)
    other = built(with_iterations(plain), name).learn(160, log_interval=None)
    for (key, weights), same in zip(one.policy.state_dict().items(), other.policy.state_dict().values(), strict=True):
        assert torch.equal(weights, same), key
    assert other.iteration == 5 and other.timesteps_per_iteration == 32


@pytest.mark.parametrize("name", ARGS)
def test_an_iteration_is_finished_before_the_algorithm_stops(name):
    algorithm, recorder = built(with_iterations(getattr(stable_baselines3, name)), name), Recorder(stops_at=40)
    algorithm.learn(160, recorder, log_interval=None)
    assert recorder.seen == [("start", 0, 0), ("end", 1), ("start", 1, 32), ("end", 2), ("start", 2, 64)]
    assert algorithm.num_timesteps == 64 and not algorithm.stop_requested


def test_an_iteration_logs_the_episodes_that_ended_in_it():
    algorithm, recorder = built(with_iterations(stable_baselines3.PPO), "PPO"), Recorder()
    algorithm.learn(96, recorder, log_interval=None)
    returns = [episode["r"] for episode in algorithm.ep_info_buffer]
    counts = [logged["rollout/n_episodes"] for logged in recorder.logged]
    assert sum(counts) == len(returns) > 1
    first = returns[: counts[0]]
    assert recorder.logged[0]["rollout/task_reward"] == pytest.approx(sum(first) / len(first))
    assert [logged["rollout/timesteps"] for logged in recorder.logged] == [32, 32, 32]


def test_number_as_action_noise_is_a_standard_deviation():
    td3 = with_iterations(stable_baselines3.TD3)("MlpPolicy", gym.make("Pendulum-v1"), buffer_size=10, action_noise=0.3)
    draws = torch.tensor([td3.action_noise()[0] for _ in range(2000)])
    assert draws.std().item() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (sb3_contrib.RecurrentPPO, "RecurrentPPO, which collects rollouts in a loop of its own"),
        (sb3_contrib.ARS, "must derive from stable-baselines3's OnPolicyAlgorithm or OffPolicyAlgorithm"),
        (print, "must derive from"),
    ],
)
def test_unknown_loop_is_refused(algorithm, message):
    with pytest.raises(ConfigError, match=message):
        with_iterations(algorithm)


def test_online_network_chooses_and_target_network_values(monkeypatch):
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


@pytest.mark.parametrize(("n_iters", "rate"), [(1, 0.01), (3, 1e-3)])
def test_the_only_iteration_of_a_run_has_the_start_of_its_schedule(n_iters, rate):
    of_rate = as_schedule({"start": 0.01, "end": 1e-3, "schedule": "cosine", "warmup": 0.5}, "learning_rate")
    algorithm = built(with_iterations(stable_baselines3.PPO), "PPO", learning_rate=of_rate)
    algorithm.learn(n_iters * algorithm.timesteps_per_iteration, log_interval=None)
    assert algorithm.policy.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
