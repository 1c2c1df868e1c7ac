"""Replies are post-processed before they are measured, and only then."""

import json

import pytest
from runs import SHORT, make_config, run_folder, supervised, train

MINE = """
from rl4dialog import PostProcessorRegistry, RewardFunctionRegistry

@PostProcessorRegistry.register("say")
def say(text, word="nothing"):
    return {returned}

@RewardFunctionRegistry.register("says")
def says(prompt_text, gen_text, ref_texts, meta_info):
    return float("WORD" in gen_text)
"""
SAY_WORD = {"id": "say", "args": {"word": "WORD"}}
ALG_KWARGS = "alg__policy__args__generation_kwargs"
EVALUATION_KWARGS = "train_evaluation__generation_kwargs"


def config_of(tmp_path, returned="word", **overrides):
    (tmp_path / "mine.py").write_text(MINE.format(returned=returned), encoding="utf-8")
    settings = {**SHORT, "imports": ["./mine.py"], "reward_fn": {"id": "says"}}
    return make_config(tmp_path, **settings, **overrides)


def replies_of(tmp_path, epoch=1):
    file = run_folder(tmp_path) / f"epoch_{epoch}_test_split_predictions.json"
    return {record["generated_text"] for record in json.loads(file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("overrides", "n_replies"),
    [
        # The evaluation generates with the rollouts' settings only if it has none of its own.
        ({ALG_KWARGS: {"post_processing_fn": SAY_WORD}}, 1),
        ({ALG_KWARGS: {"post_processing_fn": "say"}, EVALUATION_KWARGS: {"do_sample": True}}, 2),
    ],
)
def test_evaluation_is_post_processed_and_rollouts_are_not(tmp_path, overrides, n_replies):
    assert train(tmp_path, config_of(tmp_path, **overrides)) == 0
    assert len(replies_of(tmp_path)) == n_replies and ("WORD" in replies_of(tmp_path)) == (n_replies == 1)
    (info,) = (run_folder(tmp_path) / "rollout_info.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(info)["rollout/task_reward"] == 0.0


def test_supervised_run_is_post_processed(tmp_path):
    config = config_of(tmp_path)
    del config["reward_fn"]
    sampling = {"max_new_tokens": 4, "post_processing_fn": {"id": "say"}}
    config["alg"] = {**supervised(max_steps=1), "generation_kwargs": sampling}
    assert train(tmp_path, config) == 0
    assert replies_of(tmp_path) == {"nothing"}


@pytest.mark.parametrize(
    ("returned", "words"), [("1 / 0", ("ZeroDivisionError", "sample")), ("len(text)", ("must return a string",))]
)
def test_post_processor_that_fails_is_named(tmp_path, returned, words, refused):
    config = config_of(tmp_path, returned, **{EVALUATION_KWARGS: {"post_processing_fn": "say"}})
    refused(train(tmp_path, config), "post_processing_fn", *words)
