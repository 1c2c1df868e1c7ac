"""Whole runs in environments that are not made of text."""

import json

import numpy as np
import pytest
from apart import launched
from pages import EXAMPLES, yaml_of
from runs import lines, module_run, run_folder, train, trained_run, write_config
from safetensors.torch import load_file

import rl4dialog
from rl4dialog import cli
from rl4dialog.core.errors import ConfigError, RL4DialogError


def guessing(**train_evaluation):
    """The config of the page, with its example."""
    config = yaml_of("docs/environments.md", "imports:")
    config["imports"] = [str(EXAMPLES / "my_env.py")]
    config["train_evaluation"].update(train_evaluation)
    return config


CART_POLE = {
    "env": {"id": "CartPole-v1"},
    "alg": {"id": "dqn", "args": {"learning_starts": 16, "train_freq": 32, "batch_size": 8, "buffer_size": 100}},
    "train_evaluation": {"n_iters": 3, "eval_every": 1, "save_every": 1, "n_eval_episodes": 4},
    "logging": {"outputs": ["csv"]},
    "callbacks": [{"id": "save_best_model", "args": {"metric": "episode/return"}}],
}


run = module_run(lambda folder: CART_POLE)


def test_custom_environment_of_the_page_is_learned(tmp_path):
    folder = trained_run(tmp_path, guessing(n_iters=15))
    before, after = (record["metrics"] for record in lines(folder / "test_split_metrics.jsonl"))
    assert after["episode/success"] > before["episode/success"] + 0.1
    assert {"rollout/success_rate", "rollout/task_reward"} <= lines(folder / "rollout_info.jsonl")[-1].keys()
    with pytest.raises(ConfigError, match="--trust"):
        rl4dialog.load_agent(folder)
    policy = rl4dialog.load_agent(folder, checkpoint="best", trust=True)
    assert 0 <= policy.predict(np.ones(16, np.int8), deterministic=True)[0] < 16


def test_run_in_several_processes_is_refused(tmp_path):
    processes = launched(2, ["train", "--config_path", str(write_config(tmp_path, CART_POLE))], tmp_path / "by_2")
    assert all(process.wait() != 0 for process in processes)
    message = "alg.id: dqn learns at turn level, in one process only, not in 2; set env.n_envs"
    assert message in processes[0].errors


def test_files_are_those_of_any_run(run):
    assert [record["epoch"] for record in lines(run / "val_split_metrics.jsonl")] == [0, 1, 2, 3]
    row, *_ = json.loads((run / "epoch_0_val_split_predictions.json").read_text())
    rows = lines(run / "training_info.jsonl")
    assert row.keys() == {"split_name", "sample_id", "episode/return", "episode/length"}
    assert "train/loss" in rows[-1] and rows[-1]["time/steps_per_s"] > 0
    assert json.loads((run / "result.json").read_text())["iterations"] == 3
    assert {path.name for path in run.glob("*/policy.safetensors")} == {"policy.safetensors"}
    assert "time/total_timesteps" in (run / "progress.csv").read_text()
    page = (run / "report.html").read_text()
    assert "4 episodes" in page and "prompts" not in page.split("<body")[1]
    assert not [path for path in run.rglob("*") if path.suffix in (".pkl", ".pt", ".pth", ".zip", ".bin")]


def test_policy_is_loaded_again(run):
    np.random.seed(7)
    policy = rl4dialog.load_agent(run)
    assert np.random.get_state()[1][0] == 7, "the caller's random state is kept"
    saved = load_file(run / "model" / "policy.safetensors")
    assert all((policy.state_dict()[name] == tensor).all() for name, tensor in saved.items())
    with pytest.raises(RL4DialogError, match="no checkpoint 7"):
        rl4dialog.load_agent(run, checkpoint=7)
    (run.parent / "damaged").mkdir()
    with pytest.raises(RL4DialogError, match=r"contains no config\.json"):
        rl4dialog.load_agent(run.parent / "damaged")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["generate", "--input", "x.txt", "--output", "y.jsonl", "--run"], "trains no language model"),
        (["push_to_hub", "--repo_id", "a/b", "--run"], "trains no language model"),
        (["export", "--output", "x.gguf", "--run"], "trains no language model"),
        (["chat", "--run"], "env.id: CartPole-v1 has no dialogues"),
    ],
    ids=["generate", "push_to_hub", "export", "chat"],
)
def test_commands_for_dialogues_refuse_the_run(run, command, message, refused):
    refused(cli.main([*command, str(run)]), message)


def test_plan_has_derived_numbers(tmp_path, capsys):
    assert train(tmp_path, CART_POLE, "--dry_run") == 0
    plan = capsys.readouterr().out
    for row in ("Discrete(2)", "timesteps per iteration", "96", "optimizer steps"):
        assert row in plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"id": "Pendulum-v1"}}, "alg.id: dqn cannot be combined with env.id: Pendulum-v1"),
        ({"env": {"id": "CartPole-v1", "args": {"colour": 1}}}, "unexpected keyword argument 'colour'"),
        ({"alg": {"id": "maskable_ppo"}}, "the environment has no method action_masks; use ppo"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, message, refused):
    refused(train(tmp_path, {**CART_POLE, **changes}), message)


UNREPEATABLE = """
import os
import gymnasium as gym, numpy as np
from rl4dialog import EnvRegistry

@EnvRegistry.register("unrepeatable")
class Unrepeatable(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._n = 0
        return self._observation(), {}

    def step(self, action):
        self._n += 1
        return self._observation(), 1.0, False, self._n == 5, {}

    def _observation(self):
        return np.frombuffer(os.urandom(2), np.uint8).astype(np.float32) / 255
"""


def test_environment_that_does_not_repeat_itself_is_refused_on_resume(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(UNREPEATABLE)
    config = {
        "imports": ["./mine.py"],
        "env": {"id": "unrepeatable"},
        "alg": {"id": "ppo", "args": {"n_steps": 8, "batch_size": 8}},
        "train_evaluation": {"n_iters": 1, "n_eval_episodes": 1},
    }
    assert train(tmp_path, config) == 0
    config["train_evaluation"]["n_iters"] = 2
    assert train(tmp_path, config, "--resume") == 2
    told = capsys.readouterr().err
    assert "the environments do not return to where they were" in told and "state_dict()" in told
    assert (run_folder(tmp_path) / "result.json").is_file(), "the run is left as it was"


STOPS = """
import os, signal
from stable_baselines3.common.callbacks import BaseCallback
from rl4dialog import CallbackRegistry

@CallbackRegistry.register("stops")
class Stops(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 40:
            os.kill(os.getpid(), signal.SIGTERM)
        return True
"""


def test_signal_stops_a_run_between_iterations(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(STOPS)
    config = {**CART_POLE, "imports": ["./mine.py"], "callbacks": [{"id": "stops"}]}
    assert train(tmp_path, config) != 0
    assert "stopped by SIGTERM after iteration 2; saved" in capsys.readouterr().err
    assert train(tmp_path, {**config, "callbacks": []}, "--resume") == 0
    assert json.loads((run_folder(tmp_path) / "result.json").read_text())["iterations"] == 3
    config["train_evaluation"] = {**CART_POLE["train_evaluation"], "n_iters": 4}
    assert train(tmp_path, {**config, "callbacks": []}, "--resume") == 0
    assert "exploration falls over 128 timesteps from now on, and fell over 96 before" in capsys.readouterr().err
