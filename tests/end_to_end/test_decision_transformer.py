"""A run that imitates behind returns: what it learns from, and what it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import run_folder, train

import rl4dialog
from rl4dialog import cli
from rl4dialog.core.config import load_config
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.offline import build_log
from tests.runs import write_config


def config_of(**overrides: Any) -> dict[str, Any]:
    args = {"n_steps": 200, "batch_size": 100, "learning_rate": 1e-3, "target_return": -2.0}
    policy = {"model_name": "builtin/tiny-llama", "generation_kwargs": {"max_new_tokens": 6}}
    config: dict[str, Any] = {
        "seed": 0,
        "tokenizer": {"model_name": "builtin/characters"},
        "datapool": {"id": "random_walks", "args": {"n_train": 40, "n_val": 4, "n_test": 4}},
        "alg": {
            "id": "decision_transformer",
            "args": args | overrides.pop("args", {}),
            "policy": {"id": "causal_lm_actor_critic_policy", "args": policy},
        },
        "train_evaluation": {"n_iters": 1, "eval_batch_size": 4, "metrics": [{"id": "shortest_path"}]},
    }
    return {**config, **overrides}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("returns")
    assert train(tmp_path, config_of()) == 0
    return run_folder(tmp_path)


@pytest.mark.parametrize("tokenizer", ["builtin/characters", "builtin/tiny-gpt2"])
def test_train_prompts_carry_the_logged_return(tokenizer: str, tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, config_of(tokenizer={"model_name": tokenizer})))
    texts = Assembly(config).texts
    end = EndOfTurn(texts.tokenizer, [texts.tokenizer.eos_token_id], texts.data.turn_marker)
    log = build_log(config, texts, end)
    batch = log.replies(np.arange(len(log)))
    original = texts.data.pools["train"].prompted_conversations()
    for row, dialogue in enumerate(original):
        prompt = texts.tokenizer.decode(batch.prompt_ids[row][batch.prompt_mask[row]])
        written = f"return {log.returns[row]:.0f}<EOU>{dialogue.prompt}"
        assert prompt.replace(" <EOU>", "<EOU>") == written.replace(" <EOU>", "<EOU>")
    assert len(set(log.returns)) > 2


def test_evaluations_ask_for_the_target(finished: Path) -> None:
    predictions = json.loads((finished / "epoch_1_test_split_predictions.json").read_text())
    assert all(each["prompt_text"].startswith("return -2<EOU>from ") for each in predictions)


def test_loaded_policy_asks_for_the_target_unless_a_prompt_has_a_return(finished: Path) -> None:
    policy = rl4dialog.load_policy(finished)

    def read(prompt: str) -> str:
        return str(policy.tokenizer.decode(policy.prompt_ids(prompt)))

    assert read("from b<EOU>") == "return -2<EOU>from b<EOU>"
    assert read("return -5<EOU>from b<EOU>") == "return -5<EOU>from b<EOU>"
    sample = policy.data.samples("test")[0].prompt_or_input_text
    assert read(sample) == str(sample)
    asked = "return -2<EOU>from b <EOU>"
    for seed in range(3):
        kwargs = {"seed": seed, "do_sample": True}
        assert policy.chat("from b", **kwargs) == policy.generate([asked], **kwargs)[0]
    assert policy.log_probs(["from b <EOU>"], ["a"]) == policy.log_probs([asked], ["a"])
    assert policy.log_probs(["from b <EOU>"], ["a"]) != policy.log_probs(["return -5<EOU>from b <EOU>"], ["a"])


def test_evaluate_gives_the_metrics_of_the_run(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "evaluation"
    assert cli.main_of("evaluate", ["--run", str(finished), "--output_path", str(output)]) == 0
    logged = [json.loads(line) for line in (finished / "test_split_metrics.jsonl").read_text().splitlines()][-1]
    found = json.loads((output / "metrics.json").read_text())["metrics"]
    assert found and all(logged["metrics"][key] == value for key, value in found.items())


ERRORS = [
    ({"args": {"target_return": 5.0}}, "target_return is 5, but the returns of the log are between -10 and -"),
    ({"args": {"target_return": -2.5}}, "target_return is -2.5, which cannot be written with alg.args.decimals: 0"),
    ({"warm_start": {"n_epochs": 1}}, "warm_start imitates all references behind one return"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_mistake_is_named_before_training(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ((), ("--dry_run",)):
        assert train(tmp_path, config_of(**changes), *flags) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (run_folder(tmp_path) / "training_info.jsonl").exists()
