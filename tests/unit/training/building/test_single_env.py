"""The environment of a config alone, and the page that trains it with plain stable-baselines3."""

import importlib.util
import re

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
import yaml
from pages import blocks
from runs import make_config
from stable_baselines3.common.env_checker import check_env
from torch.nn.attention import SDPBackend, sdpa_kernel

import rl4dialog
from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BatchedConversationReward, BatchedRewardFunction
from rl4dialog.envs.text_generation import TextGenEnv


class ByBatch(BatchedRewardFunction):
    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [float(len(text)) + 100 * len(prompt_texts) for text in gen_texts]


class ByConversation(BatchedConversationReward):
    def __call__(self, dialogues, overs):
        return [[1.0, 10.0] if over else 0.0 for over in overs]


async def awaited(prompt_text, gen_text, ref_texts, meta_info):
    return 7.0


@pytest.fixture
def registered(monkeypatch):
    def register(**rewards):
        for name, reward in rewards.items():
            monkeypatch.setitem(RewardFunctionRegistry._entries, name, reward)

    return register


def reply(env, seed=0):
    """Reward and info of an episode of random tokens."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    total = 0.0
    while True:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        total += reward
        if terminated or truncated:
            return total, info


def test_public_names_are_listed():
    assert {"make_env", "train", "load_policy", "RewardFunctionRegistry"} <= set(dir(rl4dialog))


def test_file_mapping_and_config_give_the_same_environment(tmp_path):
    config = make_config(tmp_path)
    (tmp_path / "config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    overrides = {"env.args.max_episode_length": 4}
    given = (tmp_path / "config.yml", str(tmp_path / "config.yml"), config, parse_config(config, "c"))
    envs = [rl4dialog.make_env(each, overrides) for each in given]
    assert config["env"]["args"]["max_episode_length"] == 10
    assert isinstance(envs[0], TextGenEnv) and envs[0].max_episode_length == 4
    first, *others = [reply(env) for env in envs]
    for total, info in others:
        assert (total, info["sample_id"]) == (first[0], first[1]["sample_id"])
        assert info["final_observation"].context_text == first[1]["final_observation"].context_text


def test_rewards_of_the_main_process_are_paid_per_reply(tmp_path, registered):
    registered(by_batch=ByBatch, awaited=awaited)
    rewards = [{"id": "by_batch", "weight": 2.0}, {"id": "awaited"}]
    env = rl4dialog.make_env(make_config(tmp_path, reward_fn={"id": "composite", "args": {"rewards": rewards}}))
    total, info = reply(env)
    n = len(info["final_observation"].context_text)
    assert info["reward_parts"] == {"by_batch": n + 100.0, "awaited": 7.0} and total == 2 * (n + 100) + 7


def test_rewards_of_conversations_are_paid_at_their_end(tmp_path, registered):
    registered(by_conversation=ByConversation)
    config = make_config(tmp_path, reward_fn={"id": "by_conversation"})
    config["env"]["args"] |= {"max_turns": 2, "partner_replies": ["Yes?"], "max_prompt_length": 40}
    total, info = reply(rl4dialog.make_env(config))
    assert (total, info["turn"]) == (11.0, 1)


def test_runs_without_such_an_environment_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"env\.id: CartPole-v1 has no environment whose steps are tokens"):
        rl4dialog.make_env("task_configs/cart_pole/ppo.yml")
    config = make_config(tmp_path, reward_fn={"id": "repetition_penalty"})
    config["env"]["args"] |= {"max_turns": 2, "partner": {"id": "self_play"}}
    with pytest.raises(ConfigError, match=r"'self_play' speaks with a language model.*rl4dialog\.train"):
        rl4dialog.make_env(config)
    with pytest.raises(ConfigError, match=r"unknown key 'alg\.nothing'"):
        rl4dialog.make_env(make_config(tmp_path), {"alg.nothing": 1})


def test_stable_baselines3_finds_nothing_to_complain_about(tmp_path):
    check_env(rl4dialog.make_env(make_config(tmp_path)))


def test_other_algorithms_and_policies_say_what_is_right(tmp_path):
    env, small = rl4dialog.make_env(make_config(tmp_path)), {"n_steps": 8, "batch_size": 8, "device": "cpu"}
    with pytest.raises(ConfigError, match=r"needs its language model; pass policy_kwargs=env\.policy_kwargs"):
        stable_baselines3.PPO(env.policy_class, env, **small)
    with pytest.raises(ConfigError, match=r"token ids.*use PPO\(env\.policy_class, env, policy_kwargs=env"):
        stable_baselines3.PPO("MultiInputPolicy", env, **small)
    for algorithm in (stable_baselines3.DQN, sb3_contrib.QRDQN):
        with pytest.raises(ConfigError, match="as PPO, A2C and TRPO need; DQN, QR-DQN and RecurrentPPO need another"):
            algorithm(env.policy_class, env, policy_kwargs=env.policy_kwargs, buffer_size=8, device="cpu")
    with pytest.raises(ConfigError, match="as PPO, A2C and TRPO need; DQN, QR-DQN and RecurrentPPO need another"):
        sb3_contrib.RecurrentPPO(env.policy_class, env, policy_kwargs=env.policy_kwargs, **small)


def test_trpo_of_sb3_contrib_trains_a_policy_without_reference(tmp_path):
    config = make_config(tmp_path, reward_fn={"id": "chrf"})
    config["alg"]["policy"]["args"] |= {"reference": "ema", "reference_decay": 0.9, "offload_reference": True}
    env = rl4dialog.make_env(config)
    assert env.policy_kwargs["reference"] == "none"
    settings = {"n_steps": 16, "batch_size": 16, "cg_max_steps": 2, "seed": 0, "device": "cpu"}
    model = sb3_contrib.TRPO(env.policy_class, env, policy_kwargs=env.policy_kwargs, **settings)
    assert all(weight.requires_grad for weight in model.policy.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        model.learn(16)
    assert model.logger.name_to_value["train/n_updates"] == 1


def code_of(page, config):
    """The Python of a page, with a tiny config and few steps."""
    code = "\n".join(block for block in blocks(page, "python") if "PPO" in block or "env." in block)
    code = code.replace('"docs/examples/minimal.yml"', repr(config))
    code = re.sub(r"(n_steps|eval_freq)=\d+", r"\1=16", code)
    code = re.sub(r"n_eval_episodes=\d+", "n_eval_episodes=2", re.sub(r"learn\([\d_]+", "learn(32", code))
    if importlib.util.find_spec("tensorboard") is None:
        code = code.replace(', tensorboard_log="tensorboard"', "")
    return code.replace("CheckpointCallback(1024", "CheckpointCallback(16")


def test_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    config = make_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code_of("docs/stable_baselines3.md", config), "page", "exec"), names)
    said = capsys.readouterr().out
    assert " -> " in said and "standard deviation" in said
    assert (tmp_path / "questions.zip").is_file() and (tmp_path / "questions_model" / "config.json").is_file()
    assert list((tmp_path / "checkpoints").glob("*.zip"))
    assert type(names["model"]) is stable_baselines3.PPO and isinstance(names["several"].envs[0], gym.Wrapper)
    if importlib.util.find_spec("tensorboard") is not None:
        assert list((tmp_path / "tensorboard").rglob("events*"))


def test_code_of_the_readme_runs_in_ten_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, names = code_of("README.md", make_config(tmp_path)), {"rl4dialog": rl4dialog}
    assert code.count("\n") <= 10
    exec(compile(code, "README.md", "exec"), names)
    assert names["model"].num_timesteps == 32


def test_what_was_saved_is_loaded_as_it_was(tmp_path):
    env = rl4dialog.make_env(make_config(tmp_path, reward_fn={"id": "chrf"}))
    sizes = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}
    model = stable_baselines3.PPO(env.policy_class, env, policy_kwargs=env.policy_kwargs, **sizes)
    before = [weight.clone() for weight in model.policy.language_model.parameters()]
    model.learn(32)
    model.save(tmp_path / "model")
    loaded = stable_baselines3.PPO.load(tmp_path / "model", env=env, device="cpu")
    for name, weight in model.policy.state_dict().items():
        assert torch.equal(weight, loaded.policy.state_dict()[name]), name
    moved = zip(before, model.policy.language_model.parameters(), strict=True)
    assert not all(torch.equal(old, new) for old, new in moved)
    observation, _ = env.reset(seed=0)
    (mine, _), (theirs, _) = (each.predict(observation, deterministic=True) for each in (model, loaded))
    np.testing.assert_array_equal(mine, theirs)
    loaded.learn(16, reset_num_timesteps=False)
    assert loaded.num_timesteps == 48
