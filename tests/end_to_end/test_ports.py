"""A typical script of each of five systems, as its users write it, runs here with at most five changed lines.

A port drops lines that have nothing to do here; lines that it does not share with the original count as changed.
"""

import shlex
import textwrap

import pytest
from feature_rows import rows_of_features
from runs import CONFIG, DENSE_REWARD, changed, lines, write_config, write_dialogues

from rl4dialog import cli

MOST = 5

# What a script and its port share
THEIR_CLASSES = """

    class Short(RewardFunction):
        def __init__(self, n_words):
            super().__init__()
            self.n_words = n_words

        def __call__(self, previous, action, current, done, meta_info=None):
            return float(len(current.context_text.split()) <= self.n_words) if done else 0.0


    class Questions(BaseMetric):
        def compute(self, prompts, replies, references, meta_infos=None, model=None, split_name=None):
            asked = [float("?" in reply) for reply in replies]
            return {"style/questions": (asked, sum(asked) / len(asked))}


    RewardFunctionRegistry.add("short", Short)
    MetricRegistry.add("questions", Questions)
"""
THEIR_CHAT = """    history = []
    for text in ["hello ! how are you ?", "what do you do ?", "reset", "i like tea ."]:
        if text == "reset":
            history = []
            continue
        reply = agent.chat(text, history)
        history += [text, reply]
"""

RL4LMS = (
    """
    import yaml
    from rl4lms.envs.text_generation.logging_utils import Tracker
    from rl4lms.envs.text_generation.metric import BaseMetric
    from rl4lms.envs.text_generation.registry import MetricRegistry, RewardFunctionRegistry
    from rl4lms.envs.text_generation.reward import RewardFunction
    from rl4lms.envs.text_generation.training_utils import OnPolicyTrainer
"""
    + THEIR_CLASSES
    + """    config = yaml.safe_load(open("config.yml"))
    tracker = Tracker("runs", config, "port", "short")
    trainer = OnPolicyTrainer(
        config["tokenizer"], config["datapool"], config["reward_fn"], config["env"], config["alg"],
        config["train_evaluation"], tracker,
    )
    trainer.train_and_eval()
"""
)
RL4LMS_PORT = (
    """
    from rl4dialog import BaseMetric
    from rl4dialog import MetricRegistry, RewardFunctionRegistry
    from rl4dialog import RewardFunction, train
"""
    + THEIR_CLASSES
    + """    train("config.yml", run="runs/port/short")
"""
)

OPENRL = (
    """
    from openrl.configs.config import create_config_parser
    from openrl.envs.common import make
    from openrl.modules.common import PPONet as Net
    from openrl.runners.common import ChatAgent, PPOAgent as Agent

    cfg = create_config_parser().parse_args(["--config", "config.yml"])
    env = make("daily_dialog", env_num=2, asynchronous=True, cfg=cfg)
    agent = Agent(Net(env, cfg=cfg), use_wandb=False)
    agent.train(total_time_steps=32)
    agent.save("agent")

    agent = ChatAgent.load("agent", tokenizer="gpt2")
"""
    + THEIR_CHAT
)
OPENRL_PORT = (
    """
    from rl4dialog import load_policy, train

    train("config.yml", run="agent")

    agent = load_policy("agent")
"""
    + THEIR_CHAT
)

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

PORTS = rows_of_features("PORTS")
"""Commands of other systems, and ours."""
SHORTER = {
    "FEW": "--set env.n_envs=2 train_evaluation.n_iters=2 train_evaluation.n_eval_episodes=4 task.args={}",
    "GAMES": "--set datapool.args.n_train=40 datapool.args.n_val=4 datapool.args.n_test=4 warm_start.n_epochs=1 "
    "alg.args.n_steps=256 alg.args.batch_size=128 train_evaluation.n_iters=1 train_evaluation.eval_every=1",
}


def config_of(folder, **overrides):
    data = {"datapool.args.path": str(write_dialogues(folder / "dialogues")), "train_evaluation.n_iters": 1}
    return write_config(folder, changed(CONFIG, data | overrides))


def changed_lines(original, port):
    known = {line.strip() for line in original.splitlines()}
    return [line for line in port.splitlines() if line.strip() and line.strip() not in known]


def run_python(port, monkeypatch, folder):
    monkeypatch.chdir(folder)
    found = {}
    exec(textwrap.dedent(port), found)
    return found


@pytest.mark.parametrize(
    ("original", "port"),
    [
        (RL4LMS, RL4LMS_PORT),
        (OPENRL, OPENRL_PORT),
        (CONVOGYM, CONVOGYM_PORT),
        (CONVLAB2, CONVLAB2_PORT),
        *PORTS.values(),
    ],
    ids=["rl4lms", "openrl", "convogym", "convlab2", *PORTS],
)
def test_port_changes_few_lines(original, port):
    assert 0 < len(changed_lines(original, port)) <= MOST


def test_script_of_rl4lms_trains_with_its_own_reward_and_metric(tmp_path, monkeypatch):
    reward = {"id": "short", "args": {"n_words": 100}}
    config_of(tmp_path, reward_fn=reward, train_evaluation__metrics=[{"id": "questions"}])
    run_python(RL4LMS_PORT, monkeypatch, tmp_path)
    run = tmp_path / "runs" / "port" / "short"
    assert lines(run / "rollout_info.jsonl")[0]["rollout/task_reward"] == 1.0
    assert "style/questions" in lines(run / "test_split_metrics.jsonl")[-1]["metrics"]


def test_script_of_openrl_trains_and_chats(tmp_path, monkeypatch):
    config_of(tmp_path, reward_fn=DENSE_REWARD)
    assert run_python(OPENRL_PORT, monkeypatch, tmp_path)["history"][0] == "i like tea .", "after the reset"


def test_script_of_convogym_learns_goals(tmp_path, monkeypatch):
    policy = run_python(CONVOGYM_PORT, monkeypatch, tmp_path)["policy"]
    assert policy.action_space.n == 3 and len(lines(tmp_path / "policy" / "training_info.jsonl")) == 2


@pytest.mark.parametrize("port", [CONVLAB2_PORT, *(port for _, port in PORTS.values())], ids=["convlab2", *PORTS])
def test_commands_train_and_evaluate(tmp_path, monkeypatch, port):
    monkeypatch.chdir(tmp_path)
    for line in port.split("\n"):
        for name, flags in SHORTER.items():
            line = line.replace(name, flags)
        if words := shlex.split(line):
            assert cli.main(words[1:]) == 0
    assert (tmp_path / "evaluated" / "metrics.json").is_file()
