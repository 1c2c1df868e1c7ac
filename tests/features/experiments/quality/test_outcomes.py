"""What runs achieved: numbers that survive the file, KL around an evaluation, win rates, statistics beside scipy's."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from run_files import prediction, write_json
from run_files import write_run as write_iterations
from scipy import stats

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.features.experiments.quality.outcomes import (
    at_kl,
    judge_repetition,
    kl_curve,
    probability_of_improvement,
    read_outcome,
    read_outcomes,
    score_differences,
    spending,
    win_rate,
    write_outcomes,
)
from rl4dialog.runs.reading import read_run

KEY, OTHER = "intent/accuracy", "lexical/meteor"


def test_outcomes_are_written_with_all_numbers_and_read_again(outcomes, tmp_path):
    assert read_outcomes(tmp_path / "outcomes.json") == []
    write_outcomes(outcomes.done[::-1], tmp_path / "outcomes.json")
    assert read_outcomes(tmp_path / "outcomes.json") == outcomes.done
    unknown = replace(outcomes.done[0], tokens=[math.nan], peak_mib=math.nan, before={"a": math.nan})
    write_outcomes([unknown], tmp_path / "nan.json")
    assert "NaN" not in (tmp_path / "nan.json").read_text()
    (again,) = read_outcomes(tmp_path / "nan.json")
    assert repr(again) == repr(unknown)
    other = (tmp_path / "outcomes.json").read_text().replace('{"world"', '{"loss":1.0,"world"')
    (tmp_path / "other.json").write_text(other)
    assert '"loss"' in other and read_outcomes(tmp_path / "other.json") == outcomes.done


@pytest.mark.parametrize(
    ("changes", "made_by", "is_same", "found"),
    [
        ({"peak_mib": 1.0}, {}, True, "identical"),
        ({"peak_mib": 1.0}, {"commit": "later"}, True, "identical"),
        ({"rewards": [0.0, 0.1, 0.3]}, {}, False, r"although machine, code and versions are the same: rewards \[0.0"),
        ({}, {"last_weights": "other"}, False, "are the same: made_by.last_weights v is now other"),
        ({"after": {KEY: 0.64, OTHER: 0.2}}, {"commit": "later"}, True, "commit abcdef is now later.*is within"),
        ({"after": {KEY: 0.71, OTHER: 0.2}}, {"versions": {"torch": "3"}}, False, "is OUTSIDE"),
    ],
)
def test_a_repeated_run_is_judged_by_where_it_was_repeated(outcomes, changes, made_by, is_same, found):
    row = outcomes.of("PPO")  # .60 to .64
    repeated = replace(row[0], **{"made_by": {**row[0].made_by, **made_by}, **changes})
    verdict, text = judge_repetition(row[0], repeated, KEY, row)
    assert verdict == is_same and re.search(found, text)
    if "is within" in text:
        assert not judge_repetition(row[0], repeated, KEY, row[:2])[0]


RUN = SimpleNamespace(world="", label="PPO", seed=0, config_hash="0123")


def complete_run(folder):
    """The files of a complete run, but for its validation metrics."""
    metrics = {"before": {"length/mean": 1.0}, "after": {"length/mean": 2.0}}
    write_json(folder / "config.json", {"alg": {"id": "ppo"}})
    write_json(folder / "result.json", {"iterations": 1, "val": metrics, "test": metrics})
    write_json(folder / "epoch_0_val_split_predictions.json", [])
    return folder


def test_missing_validation_metrics_are_gaps_in_the_curve(tmp_path):
    (value,) = read_outcome(RUN, complete_run(tmp_path), ["length/mean"]).curves["length/mean"]
    assert math.isnan(value)


def test_unknown_metric_says_what_to_do_without_training_again(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'length/mean'.*correct metrics in the plan.*--page_only"):
        read_outcome(RUN, complete_run(tmp_path), ["length/men"])


def test_what_was_spent_is_counted_until_an_evaluation_with_the_run_whose_critic_it_began_with(tmp_path):
    critic = write_iterations(tmp_path / "critic", n_iters=2)  # 100 tokens and 5 seconds each
    own = {"alg": {"policy": {"args": {"critic_from": str(critic)}}}}
    for config, before in ((own, 2), ({}, 0)):
        spent = spending(read_run(write_iterations(tmp_path / "run", n_iters=3, **config)), [0, 1, 3])
        assert spent["tokens"] == [100 * (before + i) for i in (0, 1, 3)]
        assert spent["seconds"] == [5 * (before + i) for i in (0, 1, 3)]


def test_the_kl_of_an_evaluation_is_that_of_the_rollouts_around_it():
    run = SimpleNamespace(column=lambda key: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    # Rollout i + 1 is of the policy after iteration i; of the last iteration, there is no later rollout.
    assert kl_curve(run, [0, 2, 4, 6]) == pytest.approx([0.0, 0.1, 0.3, 0.45])


def test_the_probability_of_improvement_is_mann_whitneys_u():
    ours, others = [0.5, 0.7, 0.6, 0.9], [0.6, 0.4, 0.55]
    u = stats.mannwhitneyu(ours, others).statistic
    assert probability_of_improvement(ours, others) == pytest.approx(u / 12)
    assert probability_of_improvement([1.0, 1.0], [1.0, 1.0]) == 0.5


def test_a_curve_is_read_where_it_first_reaches_a_kl():
    kls, values = [0.0, 0.1, 0.05, 0.3], [1.0, 2.0, 9.0, 4.0]
    assert at_kl(kls, values, 0.05) == pytest.approx(1.5)
    assert at_kl(kls, values, 0.1) == pytest.approx(2.0)
    assert at_kl(kls, values, 0.2) == pytest.approx(9.0 + 0.6 * (4.0 - 9.0))
    assert math.isnan(at_kl(kls, values, 0.31)) and math.isnan(at_kl([], [], 0.1))


def test_a_win_is_a_higher_score_and_a_tie_half_of_one():
    assert win_rate([{"s": [1.0, -1.0, 0.0, 2.0, math.nan]}], "s").value == 2.5 / 4
    assert win_rate([{"s": [1.0, 1.0]}, {"s": [-1.0, 1.0]}], "s").value == 0.75
    run = {"s": [1.0, -1.0, 3.0], "n": [2.0, 2.0, 2.0]}  # equal lengths change nothing
    assert win_rate([run], "s", "n").value == win_rate([run], "s").value


def test_what_length_explains_does_not_win():
    rng = np.random.default_rng(0)
    longer = rng.normal(3, 2, 400)
    of_length = {"s": (0.5 * longer + rng.normal(0, 0.1, 400)).tolist(), "n": longer.tolist()}
    assert win_rate([of_length], "s").value > 0.9
    assert win_rate([of_length], "s", "n").value == pytest.approx(0.5, abs=0.07)
    better = {"s": (np.array(of_length["s"]) + 0.05).tolist(), "n": of_length["n"]}
    assert win_rate([better], "s", "n").value == pytest.approx(0.69, abs=0.07)  # 0.05 is half a standard deviation


@pytest.mark.parametrize("n_runs", [2, 3, 5])
def test_the_interval_covers_about_as_often_as_it_says(n_runs):
    rng, held = np.random.default_rng(1), 0
    for _ in range(300):  # runs differ, and so do samples, which all runs share
        scores = rng.normal(0, 0.3, (n_runs, 1)) + rng.normal(0, 0.5, (1, 60)) + rng.normal(0, 1, (n_runs, 60))
        interval = win_rate([{"s": each} for each in scores.tolist()], "s").interval
        assert interval is not None
        held += 0.5 in interval
    assert held / 300 >= 0.93
    assert win_rate([{"s": [1.0, -1.0]}], "s").interval is None


def write_run(folder, *evaluations):
    write_json(folder / "config.json", {})
    for epoch, scores in enumerate(evaluations):
        rows = [{**prediction(id, "g"), "prompt_text": "p", **values} for id, values in scores.items()]
        write_json(folder / f"epoch_{epoch}_test_split_predictions.json", rows)
    return folder


def test_differences_pair_the_same_samples(tmp_path):
    before = {1: {"s": 1.0, "n": 4.0}, 2: {"s": 2.0, "n": 4.0}, 3: {"s": None, "n": 4.0}}
    after = {2: {"s": 5.0, "n": 3.0}, 1: {"s": 1.5, "n": 4.0}, 3: {"s": 1.0, "n": 5.0}}
    found = score_differences(write_run(tmp_path, before, after), ["s", "n"])
    assert found["s"][:2] == [0.5, 3.0] and found["n"][:2] == [0.0, -1.0]
    assert math.isnan(found["s"][2]) and math.isnan(found["n"][2])


def test_missing_scores_are_named(tmp_path):
    rows = {1: {"s": 1.0}}
    with pytest.raises(DataError, match=r"no scores of single samples under 'other' \(it has: s\)"):
        score_differences(write_run(tmp_path, rows, rows), ["s", "other"])
    with pytest.raises(DataError, match="no test predictions before and after"):
        (tmp_path / "epoch_1_test_split_predictions.json").unlink()
        score_differences(tmp_path, ["s"])
