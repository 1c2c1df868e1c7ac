"""A run that is stopped and resumed is the run that was never stopped, bit by bit."""

import multiprocessing
import os
import shutil
import signal
import time

import pytest
import reward_models
import torch
from covering import covering, quick
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
    "reinforce": {"n_epochs": 1, "batch_size": 16, "baseline": "prompt"},
}


def config_of(tmp_path, algorithm="ppo", kind=CAUSAL, **overrides):
    """Two iterations with a checkpoint after each."""
    masked = algorithm == "nlpo"
    policy_args = {
        "model_name": "builtin/tiny-t5" if kind == SEQ2SEQ else "builtin/tiny-gpt2",
        "generation_kwargs": {"do_sample": True},
        **({"target_update_iterations": 2} if masked else {}),
    }
    settings = {
        "alg__id": algorithm,
        "alg__args": {"n_steps": 8, "learning_rate": 1e-3, **SETTINGS[algorithm]},
        "alg__policy": {"id": f"maskable_{kind}" if masked else kind, "args": policy_args},
        "reward_fn__normalize": "running",
        "train_evaluation__n_iters": 2,
        "train_evaluation__save_every": 1,
        "train_evaluation__eval_every": 2,
        "train_evaluation__max_eval_samples": 2,
        "train_evaluation__metrics": [{"id": "rouge"}],
        **overrides,
    }
    return make_config(tmp_path, **settings)


OFF_POLICY = {"learning_starts": 24, "batch_size": 8, "buffer_size": 60, "train_freq": 16, "gradient_steps": 2}
TURN_LEVEL = {
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


def turn_level_config(algorithm, **env):
    """Two iterations with a checkpoint after each."""
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
            **{"n_iters": 2, "save_every": 1, "eval_every": 2},
            **{"n_eval_episodes": 3, "deterministic": False},
        },
    }


def assert_resumed_is_whole(tmp_path, config):
    """Train a run, and resume a copy as if it had been killed, later than the first checkpoint but before the next."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert train(whole, config) == 0
    shutil.copytree(whole, resumed, dirs_exist_ok=True)
    (run_folder(resumed) / "result.json").unlink()  # which is written last
    for path in sorted((run_folder(resumed) / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    assert train(resumed, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(resumed))


@pytest.mark.parametrize(("algorithm", "kind"), covering(SETTINGS, (CAUSAL, SEQ2SEQ)))
def test_resumed_run_is_the_whole_run(tmp_path, algorithm, kind):
    assert_resumed_is_whole(tmp_path, config_of(tmp_path, algorithm, kind))


SELF_PLAY = {
    "env__args__max_turns": 2,
    "env__args__partner": {"id": "self_play", "args": {"snapshot_every": 1, "pool_size": 3, "latest_share": 0.3}},
    "reward_fn": {"id": "length_penalty", "args": {"max_length": 3}},
}
VARIANTS = {
    "schedules_and_supervised_loss": {
        "alg__args__learning_rate": {"start": 1e-3, "end": 1e-4, "warmup": 0.3},
        "alg__args__clip_range": {"start": 0.2, "end": 0.1, "schedule": "cosine"},
        "alg__args__supervised_coef": 0.5,
        "alg__args__supervised_batch_size": 2,
        "logging__conversations": True,  # a log that is cut back
    },
    "critic_recipes": {
        "alg__args__critic_epochs": 1,
        "alg__args__value_gae_lambda": 1.0,
        "alg__policy__args__critic_lr_factor": 3.0,
        "alg__policy__args__critic_reads": "secret",  # the references
        "alg__policy__args__value_range": [-5.0, 5.0],
        "alg__policy__args__value_loss": "cross_entropy",
        "alg__kl_div__coeff": 0.0,
        "reward_fn__normalize": "none",
    },
    "each_sample_once": {"env__args__once": True},
    "ema_and_critic_warmup": {
        "alg__policy__args__reference": "ema",
        "alg__policy__args__reference_decay": 0.7,
        "alg__args__critic_warmup_iters": 1,
    },
    "reset_lora": {
        "alg__policy__args__reference": "reset",
        "alg__policy__args__reference_every": 2,
        "train_evaluation__n_iters": 3,
        "lora": {"r": 2, "target_modules": ["c_attn"]},
    },
    "self_play": {**SELF_PLAY, "env__vec_env": "blocks", "env__n_workers": 2},
    "secret_of_the_partner": {
        "datapool": {"id": "guess_what", "args": {"n_train": 40, "n_val": 4, "n_test": 4}},
        "env__args": {"max_prompt_length": 40, "max_episode_length": 5, "max_turns": 2, "bootstrap_truncated": True},
        "env__args__partner": {"id": "guess_what"},
        "env__vec_env": "blocks",
        "alg__policy__args__critic_reads": "secret",
        "reward_fn": {"id": "length_penalty", "args": {"max_length": 3}},
        "train_evaluation__metrics": [{"id": "conversation"}],
    },
    "self_play_both": {**SELF_PLAY, "env__args__partner": {"id": "self_play", "args": {"learns": "both"}}},
    "self_play_lora": {**SELF_PLAY, "lora": {"r": 2, "target_modules": ["c_attn"]}},
}


@pytest.mark.parametrize("name", quick(*[name for name in VARIANTS if name != "self_play_lora"], of=VARIANTS))
def test_resumed_run_with_further_settings_is_the_whole_run(tmp_path, name):
    assert_resumed_is_whole(tmp_path, config_of(tmp_path, **VARIANTS[name]))


@pytest.mark.parametrize("algorithm", quick("ppo", "dqn", "sac", of=TURN_LEVEL))
def test_resumed_turn_level_run_is_the_whole_run(tmp_path, algorithm):
    assert_resumed_is_whole(tmp_path, turn_level_config(algorithm))


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


@pytest.mark.parametrize("algorithm", quick("dqn", "gdpl", of=ACTS))
def test_resumed_run_in_dialogue_acts_is_the_whole_run(tmp_path, algorithm):
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


def test_resumed_run_about_turn_goals_is_the_whole_run(tmp_path):
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
        "reward_fn": {"id": "persona_ranking", "args": {"n_distractors": 3, "embedder": "hidden_mean", **of_model}},
    }
    assert_resumed_is_whole(tmp_path, config)


def assert_two_parts_are_the_whole(tmp_path, config, n_iters):
    """The first has so many iterations, and the second is a resume with more."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    short = {**config, "train_evaluation": {**config["train_evaluation"], "n_iters": n_iters}}
    assert train(whole, config) == 0
    assert train(parts, short) == 0
    assert train(parts, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(parts))


def test_turn_level_run_that_is_given_more_iterations_is_the_longer_run(tmp_path):
    config = turn_level_config("ppo", vec_env="blocks", n_workers=2)
    config["train_evaluation"]["keep_last"] = 1  # earlier ones say how long the run was going to be
    assert_two_parts_are_the_whole(tmp_path, config, 1)


@pytest.mark.parametrize(
    "overrides",
    [
        {"lora": {"r": 2, "target_modules": ["c_attn"]}},
        {
            "alg__policy__args__critic": "shared",
            "precision": "bf16",
            "env__args__max_turns": 2,
            "env__args__partner_replies": ["oh .", "why ?"],
            "reward_fn": {"id": "length_penalty", "args": {"max_length": 3}},
            "alg__kl_div__type": "ziegler",
        },
    ],
    ids=["lora", "shared_bf16_two_turns"],
)
def test_run_that_is_given_more_iterations_is_the_longer_run(tmp_path, overrides):
    assert_two_parts_are_the_whole(tmp_path, config_of(tmp_path, train_evaluation__eval_every=1, **overrides), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that has used a GPU cannot be forked")
def test_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    """Killed while it writes files: those of a first and of a last checkpoint among them."""
    config = config_of(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(whole, config) == 0
    for n_files in (25, 30, 10):
        process = multiprocessing.get_context("fork").Process(
            target=_train_until_killed, args=(killed, config, n_files)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert train(killed, config, "--resume", "auto") == 0
    assert_same_run(run_folder(whole), run_folder(killed))


def _train_until_killed(folder, config, n_files):
    fsync, written = os.fsync, []

    def last(file):
        written.append(file)
        if len(written) == n_files:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(file)

    os.fsync = last
    train(folder, config, "--resume", "auto")


@pytest.mark.long
def test_run_killed_at_random_moments_goes_on_as_if_nothing_had_happened(tmp_path):
    config = config_of(tmp_path, train_evaluation__n_iters=8, env__vec_env="blocks")
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def arguments(folder):
        return [
            *("--config_path", str(write_config(folder, config))),
            *("--base_path_to_store_results", str(folder / "runs"), "--project_name", "p", "--experiment_name", "e"),
        ]

    started = time.monotonic()
    assert run_with_kills(arguments(whole), run_folder(whole), 0, 0.0) == []
    # So short that three of them do not reach the end of the run, on any machine.
    longest_s = (time.monotonic() - started) / 4
    kills = run_with_kills(arguments(killed), run_folder(killed), 3, longest_s)
    assert len(kills) >= 2
    assert_same_run(run_folder(whole), run_folder(killed))


ENSEMBLE = {
    "datapool": {"id": "feedback", "args": {"dataset": "small_talk", "context_size": 1, "max_size": 24}},
    "alg": {**reward_models.make_config()["alg"], "ensemble": 2, "center_coef": 0.01},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["single", "ensemble"])
def test_resumed_run_of_a_reward_model_is_the_whole_run(tmp_path, kind):
    assert_resumed_is_whole(tmp_path, reward_models.make_config(**ENSEMBLE if kind == "ensemble" else {}))
