"""A run about turn goals, and the commands that read it."""

import json

import pytest
from pages import yaml_of
from runs import lines, module_run, trained_run

from rl4dialog import cli
from rl4dialog.data.conversations.pool import LoggedConversations

PLAYERS = {"random", "round_robin", "best_order"}


def config_of_page(folder):
    """The config of the page, with few samples."""
    config = yaml_of("docs/personas.md", "datapool: {id: get_acquainted}")
    config["datapool"]["args"] = {"n_train": 60, "n_val": 10, "n_test": 10}
    config["env"]["n_envs"] = 8
    config["alg"]["args"] = {"learning_starts": 32, "buffer_size": 200, "batch_size": 16}
    config["alg"]["policy"] = {"id": "mlp_policy"}
    config["train_evaluation"] = {"n_iters": 6, "n_eval_episodes": 10}
    return config


folder = module_run(config_of_page)


def test_evaluation_has_the_scores_of_the_ranking_and_fixed_agents(folder):
    before, after = (line["metrics"] for line in lines(folder / "test_split_metrics.jsonl"))
    assert before.keys() == after.keys() >= {"episode/return", "task/p@1", "task/mrr", "task/goals_followed"}
    assert after["task/goals_followed"] == 1.0
    players = json.loads((folder / "test_split_players.json").read_text())
    assert players.keys() == PLAYERS
    assert players["best_order"]["task/different_goals"] == players["round_robin"]["task/different_goals"] == 4


def test_custom_reward_that_is_due_after_every_turn_pays_the_goals(tmp_path):
    (tmp_path / "my_goal_reward.py").write_text(
        "from rl4dialog import BatchedConversationReward, RewardFunctionRegistry\n"
        "@RewardFunctionRegistry.register('words_of_the_partner')\n"
        "class WordsOfThePartner(BatchedConversationReward):\n"
        "    def __init__(self, factor=1.0, pays_now=False):\n"
        "        self.factor = factor if pays_now else float('nan')\n"
        "    def __call__(self, dialogues, overs):\n"
        "        return [self.factor * len(dialogue.turns[-1].text.split()) for dialogue in dialogues]\n",
        encoding="utf-8",
    )
    config = config_of_page(tmp_path) | {"imports": ["./my_goal_reward.py"]}
    config["reward_fn"] = {"id": "words_of_the_partner", "args": {"factor": 0.5}}
    run = trained_run(tmp_path, config)
    for record in json.loads((run / "epoch_6_test_split_predictions.json").read_text(encoding="utf-8")):
        answers = [turn["text"] for turn in record["turns"] if turn["speaker"] == "partner" and not turn.get("given")]
        assert record["episode/return"] == pytest.approx(0.5 * sum(len(answer.split()) for answer in answers))


def test_evaluate_finds_the_logged_metrics_again(folder, tmp_path):
    assert cli.main(["evaluate", "--run", str(folder), "--output_path", str(tmp_path / "e")]) == 0
    found = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert found["metrics"] == lines(folder / "test_split_metrics.jsonl")[-1]["metrics"]
    assert found["players"].keys() == PLAYERS and found["intervals"] == {}  # of 10 episodes
    arguments = ["evaluate", "--run", str(folder), "--policy", "random", "--output_path", str(tmp_path / "r")]
    assert cli.main(arguments) == 0
    random = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert random["metrics"] == found["players"]["random"]


def test_simulated_conversations_are_a_log(folder, tmp_path):
    path = tmp_path / "log.jsonl"
    assert cli.main(["simulate", "--run", str(folder), "--n", "12", "--output", str(path)]) == 0
    records = lines(path)
    assert len(records) == 12 and all(record["n_given"] == 1 for record in records)
    messages = records[0]["messages"]
    assert [message["role"] for message in messages[:3]] == ["user", "assistant", "user"] and "goal" in messages[1]
    assert sum(records[0]["rewards"]) == pytest.approx(records[0]["return"])
    pool = LoggedConversations.prepare("train", path=str(path))
    assert len(pool) > 0


def test_commands_refuse_what_they_cannot_do(folder, tmp_path, refused):
    evaluate = ["evaluate", "--run", str(folder), "--output_path", str(tmp_path / "e")]
    for arguments, message in (
        ([*evaluate, "--policy", "rule"], "--policy rule: env.id: turn_goals has random, round_robin, best_order"),
        ([*evaluate, "--set", "env.args.goals=[pet]"], "other goals or another estimator"),
        ([*evaluate, "--set", "datapool.args.n_train=50"], "other goals or another estimator"),
        (["chat", "--run", str(folder)], "env.id: turn_goals has no dialogues, so there is nobody to chat with"),
    ):
        refused(cli.main(arguments), message)
