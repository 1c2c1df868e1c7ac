"""A turn-level run that is stopped and resumed is the run that was never stopped, bit by bit."""

import pytest
from covering import quick
from pages import EXAMPLES
from resumed import assert_resumed_is_whole, assert_two_parts_are_the_whole
from tiny import make_gpt2, make_tokenizer

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


def test_turn_level_run_that_is_given_more_iterations_is_the_longer_run(tmp_path):
    config = turn_level_config("ppo", vec_env="blocks", n_workers=2)
    config["train_evaluation"]["keep_last"] = 1  # earlier ones say how long the run was going to be
    assert_two_parts_are_the_whole(tmp_path, config, 1)
