"""Directions, repeats, intervals and changes of metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import prediction, write_json, write_lines, write_run
from scipy import stats

from rl4dialog.functional.statistics import Estimate, Interval, wilson_interval
from rl4dialog.runs.reading import Predictions, read_run
from rl4dialog.runs.report.metrics import (
    MIN_SAMPLES,
    NO_SAMPLE_SCORES,
    NOT_A_MEAN,
    MetricChange,
    described,
    direction,
    mean_and_standard_error,
    mean_interval,
    mean_intervals,
    metric_changes,
    repeated_keys,
    student_interval,
)


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


def parts(values: np.ndarray) -> tuple[float, int]:
    return float(values.var(ddof=1)) / len(values), len(values) - 1


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10])
def test_intervals_over_few_runs_hold_the_mean_as_often_as_they_say(n: int) -> None:
    rng, held, apart = np.random.default_rng(n), 0, 0
    for ours, others in zip(rng.normal(3.0, 1.0, (1000, n)), rng.normal(0.0, 2.0, (1000, n)), strict=True):
        own = mean_interval(ours)
        difference = student_interval(float(ours.mean() - others.mean()), parts(ours), parts(others))
        assert own is not None and difference is not None
        held, apart = held + (3.0 in own), apart + (3.0 in difference)
    assert 0.93 <= held / 1000 <= 0.97 and apart / 1000 >= 0.93


def test_a_difference_of_two_groups_is_welchs() -> None:
    ours, others = np.array([0.61, 0.64, 0.59, 0.63, 0.66]), np.array([0.58, 0.6, 0.42])
    low, high = stats.ttest_ind(ours, others, equal_var=False).confidence_interval()
    found = student_interval(float(ours.mean() - others.mean()), parts(ours), parts(others))
    assert found == Interval(pytest.approx(low), pytest.approx(high))


def test_values_without_spread_have_no_interval() -> None:
    assert mean_interval([0.5]) is None and mean_interval([]) is None
    assert mean_interval([1.0, 1.0, 1.0]) is None
    assert mean_interval([1.0, math.nan, 2.0]) == mean_interval([1.0, 2.0])


def test_samples_have_intervals_from_a_minimum_on() -> None:
    scores = np.random.default_rng(0).normal(size=(MIN_SAMPLES, 1))
    low, high = stats.ttest_1samp(scores[:, 0], 0.0).confidence_interval()
    assert mean_intervals(scores) == [Interval(pytest.approx(low), pytest.approx(high))]
    assert mean_intervals(scores[1:]) == [None]
    scores[0] = np.nan
    assert mean_intervals(scores) == [None]
    assert mean_intervals(np.empty((0, 1))) == [None]


def test_shares_are_uncertain_also_if_all_succeed_and_differences_are_no_shares() -> None:
    always = np.ones((60, 1))
    assert mean_intervals(always) == [wilson_interval(60, 60)]
    assert mean_intervals(always, are_differences=True) == [Interval(1.0, 1.0)]


def test_standard_error_over_runs() -> None:
    assert mean_and_standard_error([1.0, 2.0, 3.0]) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert mean_and_standard_error([4.0, math.nan]) == (4.0, None)
    mean, error = mean_and_standard_error([])
    assert math.isnan(mean) and error is None


def changes(folder: Path) -> dict[str, MetricChange]:
    run = read_run(folder)
    epochs = run.epochs("test")
    before, after = run.predictions("test", epochs[0]), run.predictions("test", epochs[-1])
    found = metric_changes(run, "test", before, after if len(epochs) > 1 else None)
    return {change.key: change for change in found}


def test_mean_of_replies_has_intervals_and_the_rest_says_why_not(tmp_path: Path) -> None:
    found = changes(write_run(tmp_path, n_prompts=80))
    assert list(found) == ["m", "d"]
    before, after, difference = found["m"].before, found["m"].after, found["m"].difference
    assert before is not None and after is not None and difference is not None
    assert (before.value, after.value, difference.value) == (0.5, 1.0, 0.5)
    assert before.interval == wilson_interval(40, 80) and after.interval == wilson_interval(80, 80)
    assert difference.interval is not None and difference.interval.low > 0 and found["m"].note == ""
    assert found["d"].note == NO_SAMPLE_SCORES
    assert found["d"].difference is not None and found["d"].difference.value == 1.0
    assert found["d"].difference.interval is None


def test_few_prompts_have_neither_intervals_nor_effects(tmp_path: Path) -> None:
    change = changes(write_run(tmp_path, n_prompts=6))["m"]
    assert (change.before, change.after, change.difference) == (Estimate(0.5), Estimate(1.0), Estimate(0.5))
    assert change.effect == ""


def test_corpus_score_that_is_no_mean_stands_beside_the_mean(tmp_path: Path) -> None:
    write_run(tmp_path, n_prompts=80)
    write_lines(
        tmp_path / "test_split_metrics.jsonl",
        [{"epoch": 0, "metrics": {"m": 0.4}}, {"epoch": 3, "metrics": {"m": 1.0}}],
    )
    found = changes(tmp_path)
    assert found["m"].note == NOT_A_MEAN
    assert found["m"].before is not None and found["m"].before.value == 0.4 and found["m"].before.interval is None
    mean = found["m, mean of the replies"]
    assert mean.before is not None and mean.before.value == 0.5 and mean.before.interval is not None


def test_rewards_of_replies_come_first(tmp_path: Path) -> None:
    write_run(tmp_path)
    for epoch in (0, 3):
        rows = [prediction(i, "a", m=[0.5, 1.0][epoch > 0], reward=float(i + epoch)) for i in range(80)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    found = changes(tmp_path)
    assert list(found) == ["reward", "m", "d"]
    difference = found["reward"].difference
    assert difference is not None and difference.interval is not None
    assert difference.value == pytest.approx(3.0) and difference.interval.low == pytest.approx(3.0)


def test_run_that_was_killed_has_its_first_evaluation_alone(tmp_path: Path) -> None:
    write_run(tmp_path, n_prompts=80)
    write_lines(tmp_path / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 0.5, "d": 7.0}}])
    (tmp_path / "epoch_3_test_split_predictions.json").unlink()
    found = changes(tmp_path)
    assert found["m"].before is not None and found["m"].before.interval is not None
    assert found["m"].after is None and found["m"].difference is None
    assert found["d"].before is not None and found["d"].before.value == 7.0


@pytest.mark.parametrize(
    ("key", "low", "high", "effect"),
    [
        ("reward", 0.1, 0.3, "better"),
        ("reward", -0.3, -0.1, "worse"),
        ("loss/reference", -0.3, -0.1, "better"),
        ("length/words", 0.1, 0.3, "other"),
        ("reward", -0.1, 0.3, ""),
    ],
)
def test_significant_changes_have_an_effect(key: str, low: float, high: float, effect: str) -> None:
    change = MetricChange(key, None, None, Estimate((low + high) / 2, Interval(low, high)))
    assert described([change], {}, {})[0].effect == effect
    assert described([MetricChange(key, None, None, None)], {}, {})[0].effect == ""


def test_repeats_are_named_in_the_line_of_what_they_repeat() -> None:
    found = [MetricChange(key, None, None, None) for key in ("reward", "reward/a", "m")]
    kept = described(found, {"reward/a": "reward", "m": "not among them"}, {})
    assert [(change.key, change.repeats) for change in kept] == [("reward", ("reward/a",)), ("m", ())]


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
