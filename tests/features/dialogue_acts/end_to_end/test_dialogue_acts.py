"""A run in dialogue acts, and what follows it: evaluation, simulation, chat, report."""

import io
import json

import pytest
import yaml
from page_client import Tab
from page_process import page_of
from runs import changed, lines, module_run, train

from rl4dialog import cli
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.conversations.pool import LoggedConversations

CONFIG = {
    "task": {"id": "town_guide", "args": {"n_dialogues": 40}},
    "env": {"id": "dialogue_acts", "n_envs": 4, "args": {"error_rate": 0.15}},
    "warm_start": {"id": "bc", "args": {"n_epochs": 5}},
    "alg": {"id": "ppo", "args": {"n_steps": 8, "batch_size": 32}, "policy": {"id": "mlp_policy"}},
    "train_evaluation": {"n_iters": 1, "save_every": 1, "n_eval_episodes": 50},
}


run = module_run(lambda folder: CONFIG)


def evaluated(output, *flags):
    assert cli.main(["evaluate", "--output_path", str(output), *flags]) == 0
    return json.loads((output / "metrics.json").read_text())


def test_predictions_are_whole_dialogues(run):
    records = json.loads((run / "epoch_1_test_split_predictions.json").read_text())
    assert len(records) == 50
    for record in records:
        assert [turn["speaker"] for turn in record["turns"][:2]] == ["partner", "agent"]
        assert record["goal_text"] and record["goal"]["domains"]
        assert record["outcome"]["success"] == record["episode/success"]
        assert bool(record["failures"]) == (not record["episode/success"])
        assert sum(turn.get("reward", 0.0) for turn in record["turns"]) == pytest.approx(record["episode/return"])


def test_report_shows_goals_and_why_dialogues_failed(run):
    page = (run / "report.html").read_text()
    assert "<b>Goal:</b> You are looking for a" in page
    assert "Why conversations failed" in page and "out of turns" in page
    assert "<th>rule</th>" in page


def test_evaluation_repeats_the_one_of_the_run(run, tmp_path):
    logged = lines(run / "test_split_metrics.jsonl")[-1]["metrics"]
    found = evaluated(tmp_path / "trained", "--run", str(run))
    assert found["metrics"] == pytest.approx(logged)
    assert found["metrics"].keys() > {"success_in_domain/restaurant", "task/match", "task/turns_of_success"}
    low, high = found["intervals"]["episode/success"]
    assert low <= found["metrics"]["episode/success"] <= high
    rule = evaluated(tmp_path / "rule", "--run", str(run), "--policy", "rule")
    assert rule["metrics"] == pytest.approx(found["players"]["rule"]) and rule["policy"] == "rule"


def test_rule_policy_is_evaluated_without_a_run(tmp_path):
    (tmp_path / "x.yml").write_text(yaml.safe_dump(CONFIG))
    flags = ("--config_path", str(tmp_path / "x.yml"), "--policy", "rule", "--set", "env.args.error_rate=0")
    found = evaluated(tmp_path / "rule", *flags, "env.args.convlab2=true")["metrics"]
    assert found["episode/success"] > 0.9 and found["task/convlab2/final_goal"] >= found["task/convlab2/success"] > 0.8
    assert found.keys() > {"success_in_domain/taxi", "success_in_domain/convlab2/taxi"}


def test_simulated_dialogues_are_continued_and_read_back(run, tmp_path):
    command = ["simulate", "--run", str(run), "--n", "7", "--output"]
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert cli.main([*command, str(whole)]) == 0
    records = lines(whole)
    assert len(records) == 7 and all(record["goal_text"] and record["outcome"] for record in records)
    assert sum(records[0]["rewards"]) == pytest.approx(records[0]["return"])
    cut.write_text("\n".join(whole.read_text().splitlines()[:3])[:-5])
    assert cli.main([*command, str(cut)]) == 0
    assert cut.read_text() == whole.read_text()
    assert len(Conversational.prepare("train", path=str(whole), turns="first")) == 7
    log = list(LoggedConversations.prepare("train", whole).conversations())
    for record, conversation in zip(records, log, strict=True):
        assert [turn.reward for turn in conversation.turns if turn.speaker == AGENT] == record["rewards"]
        assert conversation.outcome == record["outcome"]
    assert cli.main([*command, str(whole), "--policy", "rule"]) != 0, "the file has dialogues of another agent"


def test_chat_is_about_a_goal_in_words(run, monkeypatch, capsys):
    said = "/goal\nfrobnicate\nI need a cheap hotel in the north\nwhat is the phone number?\nbye\n"
    for policy in ((), ("--policy", "rule")):
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        assert cli.main(["chat", "--run", str(run), "--seed", "0", *policy]) == 0
        printed = capsys.readouterr().out
        assert "Goal: You are looking for" in printed and "error: nothing was understood" in printed
        assert "agent: Goodbye." in printed and ("Success:" in printed or "Failure:" in printed)
    assert "agent: There is" in printed, "the rule policy answers"


def test_page_is_the_chat_about_a_goal(run):
    with page_of("--run", str(run), "--policy", "rule", "--seed", "0") as address:
        tab = Tab(address)
        assert "You are looking for" in tab.value("help")
        tab.act("send", text="I need a cheap hotel in the north", acts=True)
        assert "hotel-inform(price=cheap) hotel-inform(area=north)" in tab.below(number=0)
        assert "hotel" in tab.turns()[1] and "acts: hotel-" in tab.below()
        tab.act("send", text="bye", acts=True)
        assert tab.turns()[3] == "Goodbye." and ("Success: " in tab.below() or "Failure: " in tab.below())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--compare", "gpt2"), "whose dialogues are scored by whether a goal is reached; remove --compare"),
        (("--feedback", "x.jsonl"), "remove --feedback"),
        (("--show_reward",), "remove --show_reward"),
        (("--teach",), "to talk to it, use rl4dialog chat, or rl4dialog ui"),
        (("--teach", "--policy", "rule"), "--teach shows one reply of one model at a time; remove --policy"),
        (("--queue", "x.jsonl"), "remove --run"),
    ],
)
def test_page_refuses_options_of_judged_replies(run, flags, message, refused):
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    refused(cli.main(["ui", "--run", str(run), *flags]), message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--set", "task.args.seed=1"), "was trained with other dialogue acts or another database"),
        (("--by_turn",), "--by_turn compares replies of language models"),
        (("--policy", "rule", "--set", "env.id=CartPole-v1"), "task cannot be combined with env.id: CartPole-v1"),
    ],
    ids=["other world", "by turn", "no rule policy"],
)
def test_what_does_not_fit_is_refused(run, tmp_path, flags, message, capsys):
    assert cli.main(["evaluate", "--run", str(run), "--output_path", str(tmp_path / "x"), *flags]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alg.id": "dqn", "alg.args": {"learning_starts": 0}, "warm_start": None}, "env.args.action: composite"),
        ({"env.args": {"error_rate": 1}}, "env.args.error_rate: input should be less than 1, got 1"),
        ({"task": {"id": "camrest"}}, "task.args.path: task 'camrest' needs the argument 'path'"),
        ({"task": {"id": "camrest", "args": {"path": "/nowhere"}}}, "the file CamRestDB.json"),
        ({"task": None}, "the key 'task' is missing, which env.id: dialogue_acts needs (known: camrest"),
    ],
    ids=["dqn", "error rate", "path", "files", "task"],
)
def test_config_that_does_not_fit_is_refused(tmp_path, changes, message, refused):
    refused(train(tmp_path, changed(CONFIG, changes)), message)


def test_rule_policy_is_of_environments_that_have_one(tmp_path, capsys):
    (tmp_path / "x.yml").write_text("env: {id: CartPole-v1}\nalg: {id: ppo}\ntrain_evaluation: {n_iters: 1}\n")
    flags = ["--config_path", str(tmp_path / "x.yml"), "--policy", "rule"]
    assert cli.main(["evaluate", *flags]) != 0
    assert "env.id: CartPole-v1 has no rule policy" in capsys.readouterr().err
    assert cli.main(["chat", "--config_path", str(tmp_path / "x.yml")]) != 0
    assert "env.id: CartPole-v1 needs --run with a run folder, or --policy" in capsys.readouterr().err
