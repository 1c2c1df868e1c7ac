"""Share of replies that follow their goal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.goal_followed import GoalFollowedMetric


def scores(texts: list[str], infos: list[dict[str, Any]], **args: Any) -> tuple[list[float], float]:
    found: Any = GoalFollowedMetric(**args).compute([""] * len(texts), texts, [[]] * len(texts), infos)
    return found["goal_followed"]  # type: ignore[no-any-return]


def test_share_is_of_the_replies_with_a_goal() -> None:
    texts = ["do you have a pet ?", "what do you drink ?", "how interesting .", "hello ."]
    each, share = scores(texts, [{"goal": goal} for goal in ("pet", "pet", "small_talk", None)])
    assert each[:3] == [1.0, 0.0, 1.0] and math.isnan(each[3]) and share == 2 / 3


def test_other_goals_are_those_of_their_set() -> None:
    info = {"goal": "ask about pets."}
    assert scores(["i walk my dog ."], [info], goals="convogym")[1] == 1.0
    with pytest.raises(DataError, match=r"has the goal 'ask about pets.', not one of work, pet"):
        scores(["i walk my dog ."], [info])


def test_samples_without_goals_are_named() -> None:
    with pytest.raises(DataError, match="goals_in_prompt: true; one has only history"):
        scores(["a"], [{"history": []}])
