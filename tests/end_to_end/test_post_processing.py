"""Replies are post-processed before they are measured, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import SHORT, make_config, run_folder, train

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


def config_of(tmp_path: Path, returned: str = "word", **overrides: Any) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(MINE.format(returned=returned), encoding="utf-8")
    settings = {**SHORT, "imports": ["./mine.py"], "reward_fn": {"id": "says"}}
    return make_config(tmp_path, **settings, **overrides)


def replies_of(tmp_path: Path, epoch: int = 1) -> set[str]:
    file = run_folder(tmp_path) / f"epoch_{epoch}_test_split_predictions.json"
    return {record["generated_text"] for record in json.loads(file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("overrides", "replies"),
    [
        # The evaluation generates with the rollouts' settings if it has none of its own.
        ({ALG_KWARGS: {"post_processing_fn": SAY_WORD}}, {"WORD"}),
        ({ALG_KWARGS: {"post_processing_fn": "say"}, EVALUATION_KWARGS: {"post_processing_fn": SAY_WORD}}, {"WORD"}),
    ],
)
def test_evaluation_is_post_processed_and_rollouts_are_not(
    tmp_path: Path, overrides: dict[str, Any], replies: set[str]
) -> None:
    assert train(tmp_path, config_of(tmp_path, **overrides)) == 0
    assert replies_of(tmp_path) == replies
    (info,) = (run_folder(tmp_path) / "rollout_info.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(info)["rollout/task_reward"] == 0.0


def test_evaluation_with_settings_of_its_own_is_not_post_processed_by_the_rollouts(tmp_path: Path) -> None:
    overrides = {ALG_KWARGS: {"post_processing_fn": "say"}, EVALUATION_KWARGS: {"do_sample": True}}
    assert train(tmp_path, config_of(tmp_path, **overrides)) == 0
    assert len(replies_of(tmp_path)) > 1


def test_supervised_run_is_post_processed(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    del config["reward_fn"]
    config["alg"] = {
        "id": "supervised",
        "model_type": "causal",
        "model_name": "builtin/tiny-gpt2",
        "training_args": {"max_steps": 1},
        "generation_kwargs": {"max_new_tokens": 4, "post_processing_fn": {"id": "say"}},
    }
    assert train(tmp_path, config) == 0
    assert replies_of(tmp_path) == {"nothing"}


@pytest.mark.parametrize(
    ("returned", "words"), [("1 / 0", ("ZeroDivisionError", "sample")), ("len(text)", ("must return a string",))]
)
def test_post_processor_that_fails_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], returned: str, words: tuple[str, ...]
) -> None:
    config = config_of(tmp_path, returned, **{EVALUATION_KWARGS: {"post_processing_fn": "say"}})
    assert train(tmp_path, config) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert all(word in message for word in ("post_processing_fn", *words))
