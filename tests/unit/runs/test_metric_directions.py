"""Which values of a metric are better."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.runs.metric_directions import direction


@pytest.mark.parametrize(
    ("key", "better"),
    [
        ("reward", "higher"),
        ("reward/partner", "higher"),
        ("conversation/return", "higher"),
        ("episode/success", "higher"),
        ("lexical/meteor", "higher"),
        ("lexical/ter", "lower"),
        ("fluency_metrics/perplexity", "lower"),
        ("diversity_metrics/self_bleu", "lower"),
        ("diversity_metrics/distinct-2", "higher"),
        ("consistency/persona_contradiction", "lower"),
        ("loss/reference", "lower"),
        ("task/p@1", "higher"),
        ("length/words", None),
        ("conversation/turns", None),
        ("kl/per_token", None),
        ("my/metric", None),
    ],
)
def test_direction_of_known_metrics(key: str, better: str | None) -> None:
    assert direction(key) == better


@pytest.mark.parametrize(
    ("config", "better"),
    [
        ({"train_evaluation": {"keep_best": {"metric": "my/metric", "mode": "min"}}}, "lower"),
        ({"train_evaluation": {"keep_best": "my/metric"}}, "higher"),
        ({"callbacks": [{"id": "early_stopping", "args": {"metric": "my/metric", "mode": "min"}}]}, "lower"),
        ({"train_evaluation": None, "callbacks": [None, "a", {"args": 3}]}, None),
        ({"train_evaluation": 3, "callbacks": {}}, None),
    ],
)
def test_config_of_a_run_says_it_of_custom_metrics(config: dict[str, Any], better: str | None) -> None:
    assert direction("my/metric", config) == better


def test_part_of_the_reward_that_costs_is_better_lower() -> None:
    parts = [
        {"id": "regex", "name": "assistant", "weight": -1.0},
        {"id": "meteor", "weight": 0.5},
        {"id": "toxicity", "weight": -2},
    ]
    config = {"reward_fn": {"id": "composite", "args": {"rewards": [*parts, None]}}}
    found = {key: direction(f"reward/{key}", config) for key in ("assistant", "meteor", "toxicity", "other")}
    assert found == {"assistant": "lower", "meteor": "higher", "toxicity": "lower", "other": "higher"}
    assert direction("reward", config) == "higher" == direction("reward/assistant", {"reward_fn": None})
