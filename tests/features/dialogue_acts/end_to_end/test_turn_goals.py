"""A run about turn goals, and the commands that read it."""

import io
import json

import pytest
from pages import yaml_of
from runs import contents, lines, module_run, run_folder, train, trained_run

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


def rated_config(folder, **args):
    config = config_of_page(folder)
    config["reward_fn"] = {"id": "manual_rating", "args": {"path": str(folder / "ratings.jsonl"), **args}}
    config["env"]["n_envs"], config["alg"]["args"] = 1, {"train_freq": 4, "learning_starts": 5, "batch_size": 4}
    config["train_evaluation"] = {"n_iters": 4, "n_eval_episodes": 4, "save_every": 1}
    return config


def test_ratings_of_a_person_pay_the_goals_and_outlive_an_interruption(tmp_path, monkeypatch, capsys):
    def trained_with(folder, typed, *flags):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return train(folder, rated_config(folder), *flags)

    assert trained_with(tmp_path, "9\nfive\n5\n1.5\n") == 2, "the input ends within the third iteration"
    printed = capsys.readouterr()
    for given in ("'9'", "'five'"):
        assert f"a rating is a number from 1 to 5, not {given}\nRating (1 to 5):" in printed.out
    assert "waits for a rating, but the input is at its end" in printed.err
    assert [line["rating"] for line in lines(tmp_path / "ratings.jsonl")] == [5.0, 1.5]
    assert trained_with(tmp_path, "2\n4\n", "--resume") == 0
    assert trained_with(tmp_path / "whole", "5\n1.5\n2\n4\n") == 0
    of_whole = run_folder(tmp_path / "whole")
    rewards = [line["rollout/task_reward"] for line in lines(run_folder(tmp_path) / "rollout_info.jsonl")]
    assert rewards == [5.0, 1.5, 2.0, 4.0] and contents(run_folder(tmp_path) / "model") == contents(of_whole / "model")
    # Nobody is asked in evaluations, so they have no return, and there is no best order.
    for record in lines(of_whole / "test_split_metrics.jsonl"):
        assert "episode/return" not in record["metrics"] and "task/goals_followed" in record["metrics"]
    assert json.loads((of_whole / "test_split_players.json").read_text()).keys() == PLAYERS - {"best_order"}
    assert cli.main(["simulate", "--run", str(of_whole), "--n", "2", "--output", str(tmp_path / "log.jsonl")]) == 0
    assert len(LoggedConversations.prepare("train", str(tmp_path / "log.jsonl"), held_out_share=None)) == 2


def test_ratings_of_another_scale_are_refused(tmp_path, refused):
    (tmp_path / "ratings.jsonl").write_text('{"conversation": "a", "rating": 7}\n', encoding="utf-8")
    message = r"ratings.jsonl:1: not a rating of this run: a rating is a number from 1 to 5, not 7"
    refused(train(tmp_path, rated_config(tmp_path)), message)


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
