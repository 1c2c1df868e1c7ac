"""A run that is stopped and resumed is the run that was never stopped, bit by bit."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pages import EXAMPLES
from runs import assert_same_run, make_config, run_folder, train, write_config
from tiny import make_gpt2, make_tokenizer

from benchmarks.kills import run_with_kills

CAUSAL, SEQ2SEQ = "causal_lm_actor_critic_policy", "seq2seq_lm_actor_critic_policy"
SETTINGS = {
    "ppo": {"n_epochs": 2, "batch_size": 16},
    "nlpo": {"n_epochs": 1, "batch_size": 16},
    "a2c": {},
    "trpo": {"cg_max_steps": 2, "n_critic_updates": 1, "batch_size": 16},
    "rloo": {"n_epochs": 1, "batch_size": 16, "n_generations": 2},
    "grpo": {"n_epochs": 1, "batch_size": 16, "n_generations": 2},
}


def config_of(tmp_path: Path, algorithm: str = "ppo", kind: str = CAUSAL, **overrides: Any) -> dict[str, Any]:
    """Four iterations with a checkpoint after every second."""
    masked = algorithm == "nlpo"
    policy_args: dict[str, Any] = {
        "model_name": "builtin/tiny-t5" if kind == SEQ2SEQ else "builtin/tiny-gpt2",
        "generation_kwargs": {"do_sample": True},
        **({"target_update_iterations": 2} if masked else {}),
    }
    settings: dict[str, Any] = {
        "alg__id": algorithm,
        "alg__args": {"n_steps": 8, "learning_rate": 1e-3, **SETTINGS[algorithm]},
        "alg__policy": {"id": f"maskable_{kind}" if masked else kind, "args": policy_args},
        "reward_fn__normalize": "running",
        "train_evaluation__n_iters": 4,
        "train_evaluation__save_every": 2,
        "train_evaluation__eval_every": 2,
        "train_evaluation__max_eval_samples": 2,
        "train_evaluation__metrics": [{"id": "rouge"}],
        **overrides,
    }
    return make_config(tmp_path, **settings)


OFF_POLICY = {"learning_starts": 24, "batch_size": 8, "buffer_size": 60, "train_freq": 16, "gradient_steps": 2}
TURN_LEVEL: dict[str, dict[str, Any]] = {
    "a2c": {"n_steps": 16},
    "ppo": {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    "trpo": {"n_steps": 16, "batch_size": 16, "cg_max_steps": 2},
    "maskable_ppo": {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    "dqn": {**OFF_POLICY, "target_update_interval": 10, "tau": 0.5, "exploration_fraction": 0.7},
    "qrdqn": {**OFF_POLICY, "target_update_interval": 10, "n_steps": 3},
    "crossq": OFF_POLICY,
    "ddpg": {**OFF_POLICY, "action_noise": 0.1},
    "sac": OFF_POLICY,
    "td3": {**OFF_POLICY, "action_noise": 0.1},
    "tqc": OFF_POLICY,
}
CONTINUOUS = ("crossq", "ddpg", "sac", "td3", "tqc")


def turn_level_config(algorithm: str, **env: Any) -> dict[str, Any]:
    """Four iterations with a checkpoint after every second."""
    id = "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"
    return {
        "seed": 3,
        "imports": [str(EXAMPLES / "my_env.py")] if algorithm == "maskable_ppo" else [],
        "env": {"id": "guess_the_number" if algorithm == "maskable_ppo" else id, "n_envs": 2, **env},
        "alg": {
            "id": algorithm,
            "args": {"learning_rate": 1e-2, **TURN_LEVEL[algorithm]},
            "policy": {"id": "mlp_policy", "args": {"net_arch": [8], "activation": "tanh"}},
        },
        "train_evaluation": {
            **{"n_iters": 4, "save_every": 2, "eval_every": 2},
            **{"n_eval_episodes": 3, "deterministic": False},
        },
    }


def with_iterations(config: dict[str, Any], n_iters: int) -> dict[str, Any]:
    return {**config, "train_evaluation": {**config["train_evaluation"], "n_iters": n_iters}}


def cut_short(folder: Path, copy: Path, iteration: int) -> None:
    """A copy of a run as if it had been killed, later than that checkpoint but before the next one."""
    shutil.copytree(folder, copy)
    (run_folder(copy) / "result.json").unlink()  # which is written last
    for path in (run_folder(copy) / "checkpoints").iterdir():
        if path.name > f"iteration_{iteration:06d}":
            shutil.rmtree(path)


def assert_resumed_is_whole(tmp_path: Path, config: dict[str, Any]) -> None:
    """Train a run, and resume a copy that was cut short after its second iteration."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    assert train(whole, config) == 0
    cut_short(whole, resumed, 2)
    assert train(resumed, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(resumed))


@pytest.mark.parametrize("kind", [CAUSAL, SEQ2SEQ])
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_resumed_run_is_the_whole_run(tmp_path: Path, algorithm: str, kind: str) -> None:
    config = config_of(tmp_path, algorithm, kind)
    assert_resumed_is_whole(tmp_path, config)


SELF_PLAY = {
    "env__args__max_turns": 2,
    "env__args__partner": {"id": "self_play", "args": {"snapshot_every": 1, "pool_size": 3, "latest_share": 0.3}},
    "reward_fn": {"id": "length_penalty", "args": {"max_length": 3}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "schedule": {
        "alg__args__learning_rate": {"start": 1e-3, "end": 1e-4, "warmup": 0.3},
        "alg__args__clip_range": {"start": 0.2, "end": 0.1, "schedule": "cosine"},
    },
    "ema": {"alg__policy__args__reference": "ema", "alg__policy__args__reference_decay": 0.7},
    "reset_lora": {
        "alg__policy__args__reference": "reset",
        "alg__policy__args__reference_every": 3,
        "lora": {"r": 2, "target_modules": ["c_attn"]},
    },
    "ptx": {"alg__args__supervised_coef": 0.5, "alg__args__supervised_batch_size": 2},
    "critic_warmup": {"alg__args__critic_warmup_iters": 3},
    "self_play": {**SELF_PLAY, "env__vec_env": "blocks", "env__n_workers": 2},
    "self_play_both": {**SELF_PLAY, "env__args__partner": {"id": "self_play", "args": {"learns": "both"}}},
    "self_play_lora": {**SELF_PLAY, "lora": {"r": 2, "target_modules": ["c_attn"]}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_resumed_run_with_further_settings_is_the_whole_run(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path, **VARIANTS[name])
    assert_resumed_is_whole(tmp_path, config)


def test_log_of_conversations_is_cut_back(tmp_path: Path) -> None:
    assert_resumed_is_whole(tmp_path, config_of(tmp_path, logging__conversations=True))
    with gzip.open(run_folder(tmp_path / "resumed") / "conversations.jsonl.gz") as file:
        iterations = [json.loads(line)["iteration"] for line in file]
    assert iterations == sorted(iterations) and set(iterations) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(id, marks=() if id in ("ppo", "dqn", "sac") else pytest.mark.long) for id in TURN_LEVEL],
)
def test_resumed_turn_level_run_is_the_whole_run(tmp_path: Path, algorithm: str) -> None:
    config = turn_level_config(algorithm)
    assert_resumed_is_whole(tmp_path, config)


ACTS = {
    "a2c": "multi_binary",
    "bc": "multi_binary",
    "double_dqn": "composite",
    "dqn": "composite",
    "gdpl": "multi_binary",
    "maskable_ppo": "composite",
    "ppo": "multi_binary",
    "qrdqn": "composite",
    "trpo": "multi_binary",
}


@pytest.mark.parametrize(
    "algorithm", [pytest.param(id, marks=() if id in ("dqn", "gdpl") else pytest.mark.long) for id in ACTS]
)
def test_resumed_run_in_dialogue_acts_is_the_whole_run(tmp_path: Path, algorithm: str) -> None:
    """Checkpoints are in the middle of dialogues about drawn goals, and replay buffers begin with rule-policy turns."""
    further = {
        "double_dqn": TURN_LEVEL["dqn"],
        "bc": {"batch_size": 8},
        "gdpl": {**TURN_LEVEL["ppo"], "estimator_warmup_iters": 1},
    }
    args = {**TURN_LEVEL, **further}[algorithm]
    is_off_policy = "learning_starts" in args
    config = turn_level_config("ppo")
    config["task"] = {"id": "town_guide", "args": {"n_dialogues": 20}}
    env_args = {"error_rate": 0.3, "action": ACTS[algorithm], "goals": "statistics"}
    config["env"] = {"id": "dialogue_acts", "n_envs": 2, "args": env_args}
    config["warm_start"] = {"id": "replay", "args": {"n_turns": 40}} if is_off_policy else {"id": "bc"}
    config["alg"].update(id=algorithm, args={"learning_rate": 1e-2, **args})
    assert_resumed_is_whole(tmp_path, config)


def test_resumed_run_about_turn_goals_is_the_whole_run(tmp_path: Path) -> None:
    """Checkpoints are in the middle of conversations of two sampled language models."""
    tokenizer = make_tokenizer(marker="<EOU>")
    tokenizer.save_pretrained(tmp_path / "model")
    make_gpt2(tokenizer, n_positions=80).save_pretrained(tmp_path / "model")
    of_model = {"model_name": str(tmp_path / "model")}
    config = turn_level_config("dqn")
    config |= {
        "datapool": {"id": "get_acquainted", "args": {"n_train": 10, "n_val": 3, "n_test": 3}},
        "speaker": {"id": "lm", "args": of_model},
        "partner": {"id": "language_model", "args": of_model},
        "estimator": {"id": "hidden_mean", "args": of_model},
        "env": {
            "id": "turn_goals",
            "n_envs": 2,
            "args": {"goals": ["pet", "work"], "max_turns": 3, "max_prompt_length": 60, "max_utterance_length": 4},
        },
        "reward_fn": {
            "id": "persona_ranking",
            "args": {"n_distractors": 3, "embedder": "hidden_mean", **of_model},
        },
    }
    assert_resumed_is_whole(tmp_path, config)


def assert_two_halves_are_the_whole(tmp_path: Path, config: dict[str, Any]) -> None:
    """The second half is a resume with more iterations."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    assert train(whole, config) == 0
    assert train(halves, with_iterations(config, 2)) == 0
    assert train(halves, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(halves))


def test_turn_level_run_that_is_given_more_iterations_is_the_longer_run(tmp_path: Path) -> None:
    config = turn_level_config("ppo", vec_env="blocks", n_workers=2)
    config["train_evaluation"]["keep_last"] = 1  # earlier ones say how long the run was going to be
    assert_two_halves_are_the_whole(tmp_path, config)


@pytest.mark.parametrize(
    "overrides",
    [
        {"lora": {"r": 2, "target_modules": ["c_attn"]}},
        {"alg__policy__args__critic": "shared", "precision": "bf16"},
        {
            "env__args__max_turns": 2,
            "env__args__partner_replies": ["oh .", "why ?"],
            "reward_fn": {"id": "length_penalty", "args": {"max_length": 3}},
            "alg__kl_div__type": "ziegler",
        },
    ],
    ids=["lora", "shared_bf16", "two_turns"],
)
def test_run_that_is_given_more_iterations_is_the_longer_run(tmp_path: Path, overrides: dict[str, Any]) -> None:
    config = config_of(tmp_path, **overrides)
    assert_two_halves_are_the_whole(tmp_path, config)


def arguments(folder: Path, config: dict[str, Any]) -> list[str]:
    """Of the command line."""
    return [
        *("--config_path", str(write_config(folder, config))),
        *("--base_path_to_store_results", str(folder / "runs"), "--project_name", "p", "--experiment_name", "e"),
    ]


def test_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    config = config_of(tmp_path, train_evaluation__save_every=1, train_evaluation__n_iters=8, env__vec_env="blocks")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    started = time.monotonic()
    assert run_with_kills(arguments(whole, config), run_folder(whole), 0, 0.0) == []
    # So short that three of them do not reach the end of the run, on any machine.
    longest_s = (time.monotonic() - started) / 4
    kills = run_with_kills(arguments(killed, config), run_folder(killed), 3, longest_s)
    assert len(kills) >= 2
    assert_same_run(run_folder(whole), run_folder(killed))
