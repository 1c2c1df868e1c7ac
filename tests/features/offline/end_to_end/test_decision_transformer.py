"""A run that imitates behind returns: what it learns from, and what it is asked for."""

import json

import numpy as np
import pytest
from runs import run_folder, train, trained_run

import rl4dialog
from rl4dialog.core.config import load_config
from rl4dialog.training.assembly import Assembly
from tests.runs import write_config


def config_of(**overrides):
    args = {"n_steps": 200, "batch_size": 100, "learning_rate": 1e-3, "target_return": -2.0}
    policy = {"model_name": "builtin/tiny-llama", "generation_kwargs": {"max_new_tokens": 6}}
    config = {
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
def finished(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("returns")
    return trained_run(tmp_path, config_of())


@pytest.mark.parametrize("tokenizer", ["builtin/characters", "builtin/tiny-gpt2"])
def test_train_prompts_carry_the_logged_return(tokenizer, tmp_path):
    config = load_config(write_config(tmp_path, config_of(tokenizer={"model_name": tokenizer})))
    parts = Assembly(config)
    texts, log = parts.texts, parts.log
    batch = log.replies(np.arange(len(log)))
    original = texts.data.pools["train"].prompted_conversations()
    for row, dialogue in enumerate(original):
        prompt = texts.tokenizer.decode(batch.prompt_ids[row][batch.prompt_mask[row]])
        written = f"return {log.returns[row]:.0f}<EOU>{dialogue.prompt}"
        assert prompt.replace(" <EOU>", "<EOU>") == written.replace(" <EOU>", "<EOU>")
    assert len(set(log.returns)) > 2


def test_evaluations_ask_for_the_target(finished):
    predictions = json.loads((finished / "epoch_1_test_split_predictions.json").read_text())
    assert all(each["prompt_text"].startswith("return -2<EOU>from ") for each in predictions)


def test_loaded_policy_asks_for_the_target_unless_a_prompt_has_a_return(finished):
    policy = rl4dialog.load_policy(finished)

    def read(prompt):
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


ERRORS = [
    ({"args": {"target_return": 5.0}}, "target_return is 5, but the returns of the log are between -10 and -"),
    ({"args": {"target_return": -2.5}}, "target_return is -2.5, which cannot be written with alg.args.decimals: 0"),
    ({"warm_start": {"n_epochs": 1}}, "warm_start imitates all references behind one return"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_mistake_is_named_before_training(changes, message, tmp_path, refused):
    for flags in ((), ("--dry_run",)):
        refused(train(tmp_path, config_of(**changes), *flags), message)
    assert not (run_folder(tmp_path) / "training_info.jsonl").exists()
