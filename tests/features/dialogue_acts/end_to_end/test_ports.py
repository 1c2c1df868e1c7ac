"""Typical scripts of convogym and ConvLab-2, as their users write them, run here with at most five changed lines."""

import pytest
from ports import assert_few_lines_changed, run_commands, run_python
from runs import lines

CONVOGYM = """
    from convogym.decoders import model, tokenizer
    from convogym.environments import Env
    from convogym.gyms import RLGym
    from convogym.policies import DQNPolicy
    from convogym.rewards import Reward
    from convogym.states import BaseStateEstimator

    goals = ["ask about pets.", "talk about music.", "ask about hobbies."]
    state_estimator = BaseStateEstimator(model=model, tokenizer=tokenizer)
    gym = RLGym(
        model=model, tokenizer=tokenizer, policy=DQNPolicy(action_space=goals), env=Env(state_estimator),
        reward_obj=Reward(state_estimator), length=3,
    )
    gym.sim_convos(num_convos=8, training=True)
"""
CONVOGYM_PORT = """
    from rl4dialog import train

    goals = ["ask about pets.", "talk about music.", "ask about hobbies."]
    changes = {"env.args.goals": goals, "env.args.max_turns": 3, "env.n_envs": 4, "train_evaluation.n_iters": 2}
    few = {"datapool.args": {"n_train": 40, "n_val": 4, "n_test": 4}, "train_evaluation.n_eval_episodes": 4}
    early = {"alg.args.learning_starts": 8, "alg.args.target_update_interval": 8}
    policy = train("task_configs/get_acquainted/turn_goals_dqn.yml", changes | few | early, "policy")
"""

# The README names scripts and their flags.
CONVLAB2 = """
    cd convlab2/policy
    python mle/multiwoz/train.py
    python ppo/train.py --load_path mle/multiwoz/save/best_mle --batchsz 64 --epoch 2 --process_num 2
    python evaluate.py --model_name PPO --load_path ppo/save/2_ppo
"""
CONVLAB2_PORT = """
    rl4dialog train --config_path task_configs/town_guide/bc.yml --experiment_name mle FEW
    rl4dialog train --config_path task_configs/town_guide/ppo.yml --experiment_name ppo --set alg.args.n_steps=32 FEW
    rl4dialog evaluate --run rl4dialog_exps/ppo --output_path evaluated
"""
FEW = "--set env.n_envs=2 train_evaluation.n_iters=2 train_evaluation.n_eval_episodes=4 task.args={}"


@pytest.mark.parametrize(
    ("original", "port"), [(CONVOGYM, CONVOGYM_PORT), (CONVLAB2, CONVLAB2_PORT)], ids=["convogym", "convlab2"]
)
def test_port_changes_few_lines(original, port):
    assert_few_lines_changed(original, port)


def test_script_of_convogym_learns_goals(tmp_path, monkeypatch):
    policy = run_python(CONVOGYM_PORT, monkeypatch, tmp_path)["policy"]
    assert policy.action_space.n == 3 and len(lines(tmp_path / "policy" / "training_info.jsonl")) == 2


def test_commands_of_convlab2_train_and_evaluate(tmp_path, monkeypatch):
    run_commands(CONVLAB2_PORT.replace("FEW", FEW), monkeypatch, tmp_path)
    assert (tmp_path / "evaluated" / "metrics.json").is_file()
