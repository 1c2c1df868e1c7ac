"""A typical script of each of three systems, as its users write it, runs here with at most five changed lines.

A port drops lines that have nothing to do here; lines that it does not share with the original count as changed.
"""

import pytest
from ports import assert_few_lines_changed, run_python
from runs import CONFIG, DENSE_REWARD, changed, lines, write_config, write_dialogues

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


def config_of(folder, **overrides):
    data = {"datapool.args.path": str(write_dialogues(folder / "dialogues")), "train_evaluation.n_iters": 1}
    return write_config(folder, changed(CONFIG, data | overrides))


@pytest.mark.parametrize(("original", "port"), [(RL4LMS, RL4LMS_PORT), (OPENRL, OPENRL_PORT)], ids=["rl4lms", "openrl"])
def test_port_changes_few_lines(original, port):
    assert_few_lines_changed(original, port)


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
