"""What a checkpoint holds of a stable-baselines3 algorithm, and what not."""

import json

import gymnasium as gym
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl4dialog.catalog import EnvRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ModelError
from rl4dialog.features.dialogue_acts.environments import build_turn_level_algorithm
from rl4dialog.features.dialogue_acts.trainee import capture_state, restore_state, save_state
from rl4dialog.training.checkpoint import Checkpoint


def dqn(net_arch=8):
    config = parse_config(
        {
            "env": {"id": "CartPole-v1", "n_envs": 2},
            "alg": {
                "id": "dqn",
                "args": {"learning_starts": 8, "train_freq": 8, "batch_size": 4, "buffer_size": 40},
                "policy": {"id": "mlp_policy", "args": {"net_arch": [net_arch]}},
            },
            "train_evaluation": {"n_iters": 1},
        },
        "x.yml",
    )
    return build_turn_level_algorithm(config)


def saved(algorithm, folder):
    save_state(algorithm, folder)
    return Checkpoint(folder, json.loads(json.dumps(capture_state(algorithm))))


@pytest.mark.parametrize(("n_timesteps", "n_rows"), [(16, 8), (64, 20)], ids=["filling", "full"])
def test_filled_rows_of_the_replay_buffer_are_saved(tmp_path, n_timesteps, n_rows):
    algorithm = dqn().learn(n_timesteps, log_interval=None)
    checkpoint = saved(algorithm, tmp_path)
    arrays = load_file(tmp_path / "experience.safetensors")
    assert arrays["replay.observations"].shape == (n_rows, 2, 4) and arrays["observations"].shape == (2, 4)
    other = dqn()
    restore_state(other, checkpoint)
    assert (other.replay_buffer.pos, other.replay_buffer.full) == (n_timesteps // 2 % 20, n_rows == 20)
    assert np.array_equal(other.replay_buffer.next_observations, algorithm.replay_buffer.next_observations)
    assert other.exploration_rate == algorithm.exploration_rate and other._n_calls == algorithm._n_calls > 0


def test_wish_to_stop_is_not_part_of_the_state(tmp_path):
    algorithm = dqn().learn(16, log_interval=None)
    algorithm.stop_requested = True
    other = dqn()
    restore_state(other, saved(algorithm, tmp_path))
    assert not other.stop_requested


def test_weights_of_another_architecture_are_refused(tmp_path):
    checkpoint = saved(dqn(8).learn(16, log_interval=None), tmp_path)
    with pytest.raises(ModelError, match="does not fit the policy of the config"):
        restore_state(dqn(9), checkpoint)


class Pictures(gym.Env):
    """Random images, height x width x channels."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action):
        return self._picture(), 1.0, False, False, {}

    def _picture(self):
        return self.np_random.integers(0, 256, (36, 36, 3), dtype=np.uint8)


def ppo_on_pictures():
    config = parse_config(
        {
            "env": {"id": "pictures", "n_envs": 2},
            "alg": {"id": "ppo", "args": {"n_steps": 4, "batch_size": 4}, "policy": {"id": "mlp_policy"}},
            "train_evaluation": {"n_iters": 1},
        },
        "x.yml",
    )
    return build_turn_level_algorithm(config)


def test_images_are_restored_as_the_algorithm_sees_them(tmp_path, monkeypatch):
    monkeypatch.setitem(EnvRegistry._entries, "pictures", Pictures)
    algorithm = ppo_on_pictures().learn(8, log_interval=None)
    other = ppo_on_pictures()
    restore_state(other, saved(algorithm, tmp_path))
    assert other._last_obs.shape == (2, 3, 36, 36) and np.array_equal(other._last_obs, algorithm._last_obs)


def test_doctor_checks_the_settings_and_nothing_else(tmp_path):
    config = {"env": {"id": "CartPole-v1"}, "train_evaluation": {"n_iters": 2}}
    config["alg"] = {"id": "dqn", "args": {"learning_starts": 1000}}
    examination = pytest.importorskip("rl4dialog.features.inspection.examination")
    found = examination.examine(examination.Subject(parse_config(config, "test"), tmp_path))
    assert found.pop("settings").level == "fail"
    assert {each.level for each in found.values()} == {"skip"}
