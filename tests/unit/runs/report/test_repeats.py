"""Scores that only repeat another one."""

from __future__ import annotations

import numpy as np

from rl4dialog.runs.report.predictions import Predictions
from rl4dialog.runs.report.repeats import repeated_keys


def evaluation(**scores: list[float]) -> Predictions:
    n = len(next(iter(scores.values())))
    columns = {key.replace("__", "/"): np.array(values) for key, values in scores.items()}
    return Predictions([str(i) for i in range(n)], ["a"] * n, [["a"]] * n, ["b"] * n, [[]] * n, columns, [None] * n)


def test_single_part_and_return_repeat_the_reward() -> None:
    values = [0.5, 1.0, np.nan]
    found = evaluation(reward__partner=values, conversation__return=values, reward=values)
    assert repeated_keys([found]) == {"reward/partner": "reward", "conversation/return": "reward"}


def test_metric_is_kept_rather_than_a_part_of_the_reward() -> None:
    found = evaluation(reward=[0.1, 0.2], reward__intent=[0.0, 1.0], intent__accuracy=[0.0, 1.0])
    assert repeated_keys([found]) == {"reward/intent": "intent/accuracy"}


def test_scores_that_differ_in_one_evaluation_are_no_repeats() -> None:
    before = evaluation(reward=[0.0, 1.0], reward__a=[0.0, 1.0])
    after = evaluation(reward=[0.5, 1.0], reward__a=[1.0, 2.0])
    assert repeated_keys([before]) and not repeated_keys([before, after])


def test_constants_repeat_each_other_only_among_rewards() -> None:
    found = evaluation(reward=[1.0, 1.0], reward__a=[1.0, 1.0], task__book=[1.0, 1.0], task__match=[1.0, 1.0])
    assert repeated_keys([found]) == {"reward/a": "reward"}
    assert repeated_keys([]) == {}
