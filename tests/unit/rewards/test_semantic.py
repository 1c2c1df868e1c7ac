"""Rewards of models, computed in the main process: equal to their metrics, alone or in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.rewards.semantic import BleurtReward

TEXTS = ["a cat sat", "hi dog mat", "", "mat mat hi"]
REFERENCES = [["a dog sat", "hi"], ["dog"], ["a"], ["mat a"]]


@pytest.mark.parametrize("id", ["bert_score", "bleurt"])
def test_batch_equals_the_metric_and_one_by_one(
    id: str, bert_folder: str, save_classifier: Callable[[Sequence[str]], str]
) -> None:
    args: dict[str, Any] = (
        {"model_type": bert_folder, "num_layers": 1} if id == "bert_score" else {"model_name": save_classifier(["r"])}
    )
    ((expected, _),) = MetricRegistry.get(id, args).compute([""] * 4, TEXTS, REFERENCES).values()
    reward = RewardFunctionRegistry.get(id, args)
    assert reward([""] * 4, TEXTS, REFERENCES, [True] * 4) == pytest.approx(expected, abs=1e-5)
    alone = [reward([""], [text], [refs], [True])[0] for text, refs in zip(TEXTS, REFERENCES, strict=True)]
    assert alone == pytest.approx(expected, abs=1e-5) and len(set(alone)) == 4
    assert reward([""] * 4, TEXTS, REFERENCES, [False, True, False, False])[::2] == [0.0, 0.0]


def test_bleurt_takes_rl4lms_name_for_the_checkpoint() -> None:
    RewardFunctionRegistry.check("bleurt", {"checkpoint": "bleurt-base-128"})
    with pytest.raises(ConfigError, match="unknown config_name 'bleurt-bas-128'"):
        BleurtReward(checkpoint="bleurt-bas-128")


def test_spider_is_the_weighted_sum_of_its_two_metrics(spice_folder: Path) -> None:
    spice = {"spice_path": str(spice_folder), "java": str(spice_folder / "java")}
    texts, references = ["a cat sat", "dogs run fast"], [["a cat sat down"], ["dogs run"]]
    parts = []
    for id, args in (("spice", spice), ("cider", {})):
        ((scores, _),) = MetricRegistry.get(id, args).compute(["", ""], texts, references).values()
        parts.append(scores)
    expected = [0.25 * s + 0.75 * c for s, c in zip(*parts, strict=True)]
    coefficients = {"spice_coeff": 0.25, "cider_coeff": 0.75}
    reward = RewardFunctionRegistry.get("spider", {**coefficients, **spice})
    assert reward(["", ""], texts, references, [True, True]) == pytest.approx(expected)
    assert min(map(min, parts)) > 0  # type: ignore[type-var]


def test_spider_of_rl4lms_configs_needs_no_java_for_cider_alone() -> None:
    args = {"spice_coeff": 0.0, "cider_coeff": 1.0, "shaping_fn": "common_gen_repeat_penalty_batched"}
    reward = RewardFunctionRegistry.get("spider", args)
    prompts = ["generate a sentence with: cat sit.", "generate a sentence with: dog run."]
    texts, references = ["the cat likes it", "a sentence about dogs"], [["the cat sits"], ["dogs run"]]
    ((cider, _),) = MetricRegistry.get("cider").compute(prompts, texts, references).values()
    assert reward(prompts, texts, references, [True, True]) == pytest.approx([cider[0], cider[1] - 1.0])
