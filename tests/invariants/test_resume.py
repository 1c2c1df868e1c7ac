"""A run that is stopped and resumed is the run that was never stopped, bit by bit."""

import multiprocessing
import os
import signal
import time

import pytest
import reward_models
import torch
from covering import covering, quick
from resumed import assert_resumed_is_whole, assert_two_parts_are_the_whole
from runs import assert_same_run, make_config, run_folder, train, write_config

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
        "alg__policy__args__critic_lr_factor": 3.0,
        "alg__policy__args__critic_reads": "secret",  # the references
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
    "several_partners": {
        **SELF_PLAY,
        "env__args__partner": {
            "id": "several",
            "args": {
                "partners": [
                    SELF_PLAY["env__args__partner"],
                    {"id": "rules", "args": {"rules": [{"pattern": "x", "replies": "y"}], "otherwise": ["a", "b"]}},
                ],
                "weights": [3, 1],
            },
        },
    },
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
