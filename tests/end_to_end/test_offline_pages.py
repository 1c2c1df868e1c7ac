"""The pages about learning from logs: their configs and files work as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pages import EXAMPLES, yaml_of
from runs import keep_registries, lines, run_folder, train

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.types import AGENT
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.training.building.components import check_components


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep_registries(monkeypatch)
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)


def smaller(config: dict[str, Any]) -> dict[str, Any]:
    config["alg"]["args"] |= {"n_steps": 200, "batch_size": 100}
    config["train_evaluation"] |= {"n_iters": 1, "eval_every": 1, "max_eval_samples": 2}
    return config


def test_config_of_the_page_learns_from_walks(tmp_path: Path) -> None:
    config = smaller(load_yaml(EXAMPLES / "offline.yml"))
    config["datapool"]["args"] = {"n_train": 40, "n_val": 20, "n_test": 20}
    assert train(tmp_path, config) == 0
    (info,) = lines(run_folder(tmp_path) / "training_info.jsonl")
    logged = {"q_loss", "v_loss", "cql_loss", "policy_loss", "q_mean", "v_mean", "target_q", "td_error"}
    assert {f"train/{name}" for name in (*logged, "advantage_mean", "advantage_abs")} <= info.keys()


def test_config_of_ilql_is_valid() -> None:
    config = parse_config(yaml_of("docs/coming_from/ilql.md", "seed:"), "ilql.md")
    check_components(config)
    assert config.alg.policy.args.guidance["clip"] == 0.0  # type: ignore[union-attr]


def test_datapool_of_conversations_pays_offers() -> None:
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


def test_algorithm_and_datapool_of_ones_own_train_together(tmp_path: Path) -> None:
    config = {
        "imports": [str(EXAMPLES / name) for name in ("my_log.py", "my_offline_algorithm.py")],
        "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 300},
        "datapool": {"id": "waiter", "args": {"n": 20}},
        "alg": yaml_of("docs/your_own/algorithm.md", "imports: [./my_offline")["alg"],
        "train_evaluation": {"metrics": [{"id": "length"}]},
    }
    config = smaller(config)
    config["train_evaluation"] |= {"n_iters": 2, "save_every": 1}
    assert train(tmp_path, config) == 0
    first, second = lines(run_folder(tmp_path) / "training_info.jsonl")
    assert second["train/loss"] < first["train/loss"]
    assert 0 < first["train/weight"] < 5.0
    assert not (run_folder(tmp_path) / "model" / "value_guidance.json").exists()
