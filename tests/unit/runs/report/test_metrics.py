"""Directions, repeats, intervals and changes of metrics."""

import math

import numpy as np
import pytest
from run_files import prediction, write_json, write_lines, write_run
from scipy import stats

from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.functional.statistics import Estimate, Interval, wilson_interval
from rl4dialog.runs.reading import Predictions, read_run
from rl4dialog.runs.report.metrics import (
    NO_SAMPLE_SCORES,
    NOT_A_MEAN,
    MetricChange,
    before_and_after,
    direction,
    mean_estimate,
    metric_changes,
    repeated_keys,
    reward_differences,
    sample_estimate,
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
def test_direction_of_known_metrics(key, better):
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
def test_config_of_a_run_says_it_of_custom_metrics(config, better):
    assert direction("my/metric", config) == better


def test_part_of_the_reward_that_costs_is_better_lower():
    parts = [
        {"id": "regex", "name": "assistant", "weight": -1.0},
        {"id": "meteor", "weight": 0.5},
        {"id": "toxicity", "weight": -2},
    ]
    config = {"reward_fn": {"id": "composite", "args": {"rewards": [*parts, None]}}}
    found = {key: direction(f"reward/{key}", config) for key in ("assistant", "meteor", "toxicity", "other")}
    assert found == {"assistant": "lower", "meteor": "higher", "toxicity": "lower", "other": "higher"}
    assert direction("reward", config) == "higher" == direction("reward/assistant", {"reward_fn": None})


COSTS, METEOR = {"id": "outcome", "args": {"per_turn": -0.1}}, {"id": "meteor", "args": {"synonyms": False}}
FALLING = {"id": "composite", "args": {"rewards": [{**METEOR, "weight": {"schedule": "linear"}}]}}
PARTNER, PAID = {"env": {"args": {"partner": {"id": "p"}, "max_turns": 3}}}, {"reward_fn": {"id": "partner"}}
AS_METRIC = {"train_evaluation": {"n_iters": 9, "metrics": [{"id": "reward", "args": METEOR}]}}


@pytest.mark.parametrize(
    ("key", "one", "other", "differing"),
    [
        ("reward", {"reward_fn": COSTS, "seed": 1}, {"reward_fn": {**COSTS, "normalize": "batch", "clip": [0, 1]}}, ""),
        ("reward", {"reward_fn": COSTS}, {"reward_fn": {**COSTS, "pay": "turn"}}, "reward_fn.pay"),
        ("conversation/return", {"reward_fn": COSTS}, {"reward_fn": {"id": "outcome"}}, "reward_fn.args.per_turn"),
        ("lexical/meteor", {"reward_fn": COSTS}, {"reward_fn": METEOR}, ""),
        ("reward", {"reward_fn": COSTS, **PARTNER}, {"reward_fn": COSTS}, ""),
        ("reward", PAID | PARTNER, PAID, "env.args.partner.id"),
        ("reward/partner", PAID | PARTNER, PAID, "env.args.partner.id"),
        ("reward/meteor", {"reward_fn": FALLING}, {"reward_fn": {**FALLING, "pay": "turn"}}, "meteor.pay"),
        ("reward", {"reward_fn": FALLING}, {"reward_fn": FALLING, **AS_METRIC}, "train_evaluation.n_iters"),
        ("episode/return", {"env": {"id": "a", "args": {"n": 1}}}, {"env": {"id": "a"}}, "env.args.n"),
        ("sampled/episode/return", {"env": {"id": "a"}}, {"env": {"id": "b"}}, "env.id"),
        ("episode/success", {"env": {"id": "a"}}, {"env": {"id": "b"}}, ""),
        ("reward/meteor", {"reward_fn": METEOR}, AS_METRIC, ""),
        ("reward/meteor", {"reward_fn": FALLING}, {"reward_fn": METEOR}, ""),
        ("reward/meteor", {"reward_fn": METEOR}, {"reward_fn": {"id": "meteor"}}, "meteor.args.synonyms"),
        ("reward/x", {"reward_fn": {**METEOR, "name": "x"}}, {"reward_fn": {**METEOR, "id": "y", "name": "x"}}, "x.id"),
        ("reward/meteor_2", {"reward_fn": METEOR}, {"reward_fn": {"id": "b", "args": METEOR["args"]}}, "reward_fn.id"),
    ],
)
def test_rewards_are_the_same_if_what_they_follow_from_is(key, one, other, differing):
    assert reward_differences(key, one, other) == [*filter(None, [differing])]


def test_intervals_over_runs_are_students_and_welchs():
    ours, others = [0.61, 0.64, 0.59, 0.63, 0.66], [0.58, 0.6, 0.42]
    low, high = stats.ttest_ind(ours, others, equal_var=False).confidence_interval()
    expected = Interval(pytest.approx(low), pytest.approx(high))
    assert student_interval(float(np.mean(ours) - np.mean(others)), ours, others) == expected
    low, high = stats.ttest_1samp(ours, 0.0).confidence_interval()
    expected = Interval(pytest.approx(low), pytest.approx(high))
    assert mean_estimate([*ours, math.nan]) == Estimate(pytest.approx(0.626), expected)


def test_values_without_spread_have_no_interval():
    assert mean_estimate([0.5]) == Estimate(0.5) and mean_estimate([1.0, 1.0]) == Estimate(1.0)
    assert mean_estimate([0.05] * 3).interval is None  # whose standard deviation is 8e-18 by numpy
    assert math.isnan(mean_estimate([]).value) and mean_estimate([]).interval is None
    assert student_interval(0.0, [1.0, 2.0], [1.0, math.nan]) is None
    assert all(sample_estimate(np.full(60, value)).interval is None for value in (math.inf, -math.inf, math.nan))


def test_samples_have_intervals_from_a_minimum_on_of_which_those_of_shares_are_wilsons():
    scores = np.random.default_rng(0).normal(size=MIN_SAMPLES)
    low, high = stats.ttest_1samp(scores, 0.0).confidence_interval()
    assert sample_estimate(scores).interval == Interval(pytest.approx(low), pytest.approx(high))
    scores[0] = np.nan
    assert sample_estimate(scores) == Estimate(pytest.approx(scores[1:].mean()))
    assert math.isnan(sample_estimate(np.empty(0)).value)
    assert sample_estimate(np.ones(60)) == Estimate(1.0, wilson_interval(60, 60))
    assert sample_estimate(np.ones(60), are_differences=True) == Estimate(1.0, Interval(1.0, 1.0))


def changes(folder):
    run = read_run(folder)
    return {change.key: change for change in metric_changes(run, "test", *before_and_after(run, "test"))}


def test_mean_of_replies_has_intervals_and_the_rest_says_why_not(tmp_path):
    found = changes(write_run(tmp_path, n_prompts=80))
    assert list(found) == ["m", "d"]
    assert found["m"].before == Estimate(0.5, wilson_interval(40, 80))
    assert found["m"].after == Estimate(1.0, wilson_interval(80, 80))
    difference = found["m"].difference
    assert difference is not None and difference.value == 0.5
    assert difference.interval is not None and difference.interval.low > 0 and found["m"].note == ""
    assert found["d"].note == NO_SAMPLE_SCORES and found["d"].difference == Estimate(1.0)

    few = changes(write_run(tmp_path, n_prompts=6))["m"]
    assert (few.before, few.after, few.difference, few.effect) == (Estimate(0.5), Estimate(1.0), Estimate(0.5), "")


def test_corpus_score_that_is_no_mean_stands_beside_the_mean(tmp_path):
    write_run(tmp_path, n_prompts=80)
    metrics = [{"epoch": epoch, "metrics": {"m": m}} for epoch, m in ((0, 0.4), (3, 1.0))]
    write_lines(tmp_path / "test_split_metrics.jsonl", metrics)
    found = changes(tmp_path)
    assert found["m"].note == NOT_A_MEAN and found["m"].before == Estimate(0.4)
    assert found["m, mean of the replies"].before == Estimate(0.5, wilson_interval(40, 80))


def test_rewards_of_replies_come_first(tmp_path):
    write_run(tmp_path)
    for epoch in (0, 3):
        rows = [prediction(i, "a", m=[0.5, 1.0][epoch > 0], reward=float(i + epoch)) for i in range(80)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    found = changes(tmp_path)
    assert list(found) == ["reward", "m", "d"]
    assert found["reward"].difference == Estimate(pytest.approx(3.0), Interval(pytest.approx(3.0), pytest.approx(3.0)))


def test_run_that_was_killed_has_its_first_evaluation_alone(tmp_path):
    write_run(tmp_path, n_prompts=80)
    write_lines(tmp_path / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 0.5, "d": 7.0}}])
    (tmp_path / "epoch_3_test_split_predictions.json").unlink()
    found = changes(tmp_path)
    assert found["m"].before == Estimate(0.5, wilson_interval(40, 80)) and found["d"].before == Estimate(7.0)
    assert found["m"].after is None and found["m"].difference is None


@pytest.mark.parametrize(
    ("better", "low", "high", "effect"),
    [
        ("higher", 0.1, 0.3, "better"),
        ("higher", -0.3, -0.1, "worse"),
        ("lower", -0.3, -0.1, "better"),
        (None, 0.1, 0.3, "other"),
        ("higher", -0.1, 0.3, ""),
    ],
)
def test_significant_changes_have_an_effect(better, low, high, effect):
    difference = Estimate((low + high) / 2, Interval(low, high))
    assert MetricChange("m", None, None, difference, direction=better).effect == effect
    assert MetricChange("m", None, Estimate(1e9), difference, direction=better).effect == "", "rounding of so much"


def test_repeats_are_named_in_the_line_of_what_they_repeat(tmp_path):
    write_run(tmp_path)
    metrics = dict.fromkeys(("reward", "reward/a", "m"), 1.0)
    write_lines(tmp_path / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": metrics}])
    found = metric_changes(read_run(tmp_path), "test", None, None, {"reward/a": "reward", "m": "not among them"})
    assert [(each.key, each.repeats, each.direction) for each in found] == [
        ("reward", ("reward/a",), "higher"),
        ("m", (), None),
    ]


def evaluation(**scores):
    n = len(next(iter(scores.values())))
    columns = {key.replace("__", "/"): np.array(values) for key, values in scores.items()}
    return Predictions([str(i) for i in range(n)], ["a"] * n, [["a"]] * n, ["b"] * n, [[]] * n, columns, [None] * n)


_VALUES, _ONES = [0.5, 1.0, np.nan], [1.0, 1.0]


@pytest.mark.parametrize(
    ("scores", "repeats"),
    [
        (
            {"reward__partner": _VALUES, "conversation__return": _VALUES, "reward": _VALUES},
            {"reward/partner": "reward", "conversation/return": "reward"},
        ),
        # A metric is kept rather than a part of the reward.
        (
            {"reward": [0.1, 0.2], "reward__intent": [0.0, 1.0], "intent__accuracy": [0.0, 1.0]},
            {"reward/intent": "intent/accuracy"},
        ),
        # Constants repeat each other only among rewards.
        ({"reward": _ONES, "reward__a": _ONES, "task__book": _ONES, "task__match": _ONES}, {"reward/a": "reward"}),
        # The one of which more is better is kept.
        ({"c__ended": [0, 1], "c__success": [0, 1]}, {"c/ended": "c/success"}),
    ],
)
def test_repeats_are_found(scores, repeats):
    assert repeated_keys([evaluation(**scores)]) == repeats


def test_scores_that_differ_in_one_evaluation_are_no_repeats():
    before = evaluation(reward=[0.0, 1.0], reward__a=[0.0, 1.0])
    after = evaluation(reward=[0.5, 1.0], reward__a=[1.0, 2.0])
    assert repeated_keys([before]) and not repeated_keys([before, after]) and repeated_keys([]) == {}
