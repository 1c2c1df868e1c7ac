"""Any reward as a metric."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.metrics.rouge import RougeMetric

TEXTS, REFERENCES = ["the cat sat", "dogs"], [["the cat sat"], ["a cat"]]


def compute(id: str, args: dict[str, Any] | None = None) -> Any:
    metric = MetricRegistry.get("reward", {"id": id, "args": args or {}})
    return metric.compute(["p", "q"], TEXTS, REFERENCES, [{"n": 1}, None])


def test_metric_as_a_reward_as_a_metric_is_itself() -> None:
    expected = RougeMetric().compute(["p", "q"], TEXTS, REFERENCES)["lexical/rouge_rouge2"]
    assert compute("rouge", {"rouge_type": "rouge2"}) == {"reward/rouge": expected}


def test_parts_of_a_composite_are_keys_too() -> None:
    async def judge(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return float(len(gen_text))

    falling = {"schedule": "linear", "start": 2.0, "end": 0.0, "n_iters": 5}
    rewards = [
        {"id": "judge", "weight": falling, "clip": 9},
        {"id": "regex", "args": {"pattern": "cat"}, "name": "cats"},
    ]
    RewardFunctionRegistry.add("judge", judge)
    try:
        found = compute("composite", {"rewards": rewards})
    finally:
        del RewardFunctionRegistry._entries["judge"]
    assert found == {
        "reward/judge": ([11.0, 4.0], 7.5),
        "reward/cats": ([1.0, 0.0], 0.5),
        "reward/composite": ([19.0, 8.0], 13.5),
    }


def test_errors_are_those_of_the_reward() -> None:
    with pytest.raises(ConfigError, match="unknown reward function 'roug'; did you mean 'rouge'"):
        MetricRegistry.get("reward", {"id": "roug"})
    with pytest.raises(ConfigError, match="needs the argument 'id'"):
        MetricRegistry.get("reward", {})
    with pytest.raises(RewardError, match=r"'missing_eos_penalty' failed on sample 0.*needs a reply's tokens"):
        compute("missing_eos_penalty")


@pytest.mark.parametrize(("rewards", "needs"), [(["regex", "rouge"], True), (["regex"], False)])
def test_replies_without_references_are_left_out_if_a_part_needs_them(rewards: list[str], needs: bool) -> None:
    blocks = [{"id": id, "args": {"pattern": "cat"} if id == "regex" else {}} for id in rewards]
    assert MetricRegistry.get("reward", {"id": "composite", "args": {"rewards": blocks}}).needs_references == needs


@pytest.mark.parametrize("id", ["outcome", "partner"])
def test_what_a_partner_gives_is_no_score_of_a_reply(id: str) -> None:
    with pytest.raises(ConfigError, match=f"reward '{id}' comes from the partner.*metric 'conversation'"):
        MetricRegistry.get("reward", {"id": "composite", "args": {"rewards": [{"id": id}]}})
