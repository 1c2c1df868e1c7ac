"""The pages about learning from logs: their configs and files work as they stand."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from pages import EXAMPLES, ROOT, blocks, yaml_of
from runs import keep_registries, lines, run_folder, trained_run

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.cli import main
from rl4dialog.commands.parser import COMMANDS
from rl4dialog.core.config import parse_config
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.types import AGENT
from rl4dialog.core.yaml_loader import load_yaml, parse_yaml
from rl4dialog.scores.reward_models import LearnedRewardMetric
from rl4dialog.training.building.components import check_components


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    keep_registries(monkeypatch)
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)


def smaller(config):
    config["alg"]["args"] |= {"n_steps": 200, "batch_size": 100}
    config["train_evaluation"] |= {"n_iters": 1, "eval_every": 1, "max_eval_samples": 2}
    return config


def test_config_of_the_page_learns_from_walks(tmp_path):
    config = smaller(load_yaml(EXAMPLES / "offline.yml"))
    config["datapool"]["args"] = {"n_train": 40, "n_val": 20, "n_test": 20}
    (info,) = lines(trained_run(tmp_path, config) / "training_info.jsonl")
    logged = {"q_loss", "v_loss", "cql_loss", "policy_loss", "q_mean", "v_mean", "target_q", "td_error"}
    assert {f"train/{name}" for name in (*logged, "advantage_mean", "advantage_abs")} <= info.keys()


def test_a_classifier_scores_the_comments_of_the_log_and_generated_ones(tmp_path, save_classifier):
    block, folder = yaml_of("docs/offline_tasks.md", "reward_fn:"), save_classifier(["polite", "toxic"])
    config = smaller(load_yaml(ROOT / "task_configs" / "comment_reply" / "llama_ilql.yml"))
    config["datapool"]["args"] = {"n_train": 60, "n_val": 4, "n_test": 4, "include_parent": False}
    block["reward_fn"]["args"]["rewards"][0]["args"]["model_name"] = str(folder)
    config["alg"] = {**config["alg"], "rewards": block["alg"]["rewards"]}
    run = trained_run(tmp_path, {**config, "reward_fn": block["reward_fn"]})
    (info,) = lines(run / "training_info.jsonl")
    assert -5.1 < info["train/target_q"] < 0, "the log has none of these rewards itself"
    *_, after = lines(run / "test_split_metrics.jsonl")
    predictions = json.loads((run / "epoch_1_test_split_predictions.json").read_text())
    texts = [each["generated_text"] for each in predictions]
    scorer = LearnedRewardMetric(str(folder), label_ix="toxic", include_prompt_for_eval=False)
    (found,) = scorer.compute(["x"] * len(texts), texts, [[]] * len(texts)).values()
    assert after["metrics"]["reward"] == pytest.approx(-5 * found[1])


def test_config_of_ilql_is_valid():
    config = parse_config(yaml_of("docs/coming_from/ilql.md", "seed:"), "ilql.md")
    check_components(config)
    assert config.alg.policy.args.guidance["clip"] == 0.0


def test_datapool_of_conversations_pays_offers():
    block = yaml_of("docs/your_own/datapool.md", "imports: [./my_log")
    load_imports([str(EXAMPLES / "my_log.py")], EXAMPLES)
    DataPoolRegistry.check(block["datapool"]["id"], block["datapool"]["args"])
    pool = DataPoolRegistry.get("waiter", {"split": "train", **block["datapool"]["args"]})
    dialogues = list(pool.conversations())
    assert len(dialogues) == len(pool) == 400 and dialogues == list(pool.conversations())
    for dialogue in dialogues:
        offers = [turn for turn in dialogue.said if turn.speaker == AGENT][1:]
        assert [turn.reward for turn in offers] == [-1.0] * (len(offers) - 1) + [4.0]
    assert {len(dialogue.turns) for dialogue in dialogues} == {5, 7, 9}


def test_algorithm_and_datapool_of_ones_own_train_together(tmp_path):
    config = {
        "imports": [str(EXAMPLES / name) for name in ("my_log.py", "my_offline_algorithm.py")],
        "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 300},
        "datapool": {"id": "waiter", "args": {"n": 20}},
        "alg": yaml_of("docs/your_own/algorithm.md", "imports: [./my_offline")["alg"],
        "train_evaluation": {"metrics": [{"id": "length"}]},
    }
    config = smaller(config)
    config["train_evaluation"] |= {"n_iters": 2, "save_every": 1}
    first, second = lines(trained_run(tmp_path, config) / "training_info.jsonl")
    assert second["train/loss"] < first["train/loss"]
    assert 0 < first["train/weight"] < 5.0
    assert not (run_folder(tmp_path) / "model" / "value_guidance.json").exists()


def test_rated_conversations_are_learned_in_the_order_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rated_log.py", "60"])
    runpy.run_path(str(EXAMPLES / "rated_log.py"))
    rater, bc, learner = (parse_yaml(block, "rated_logs.md") for block in blocks("docs/rated_logs.md", "yaml"))
    rater["tokenizer"] |= {"vocab_size": 300, "max_length": 64}
    bc["tokenizer"]["vocab_size"] = 300
    for name, config in {"rater": rater, "bc": smaller(bc), "mc": smaller({**bc, **learner})}.items():
        Path(f"{name}.yml").write_text(yaml.safe_dump(config))
        assert main(["train", "--config_path", f"{name}.yml", "--experiment_name", name]) == 0, name
    if "validate-reward" in COMMANDS:
        assert main(["validate-reward", "--config_path", "bc.yml", "--ratings", "ratings_test.jsonl"]) == 0
    if "report" in COMMANDS:
        assert main(["report", "rl4dialog_exps/bc", "rl4dialog_exps/mc", "--output", "comparison.html"]) == 0
    result = json.loads(Path("rl4dialog_exps/mc/result.json").read_text())
    assert {"reward", "kl_to_prior", "lexical/rouge_rouge1"} <= result["test"]["after"].keys()
