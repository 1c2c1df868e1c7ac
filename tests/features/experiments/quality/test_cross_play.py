"""Agents by partners: paired intervals, partners met in training, and the page of a plan."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from plans import write_plan
from runs import make_config, run_folder, train, write_config

from rl4dialog import cli
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.experiments.quality import cross_play
from rl4dialog.features.experiments.quality.cross_play import CrossPlay, estimate
from rl4dialog.features.experiments.quality.page import cross_play_parts
from rl4dialog.features.experiments.quality.plan import load_plan
from rl4dialog.runs.report.metrics import mean_estimate, sample_estimate

RULES = {"id": "rules", "args": {"rules": [{"pattern": "x", "replies": "y"}], "otherwise": "i see ."}}
STRANGER = {"id": "rules", "args": {"rules": [{"pattern": "[a-z]", "leaves": True}]}}


def crossed(**scores):
    by_partner = {agent: dict(zip(("a", "b", "c"), each, strict=True)) for agent, each in scores.items()}
    return CrossPlay(["a", "b", "c"], {"m": by_partner}, {agent: ["a", "b"] for agent in scores})


def test_gap_is_between_partners_met_and_never_met_about_the_same_samples():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(1, 60))
    found = crossed(x=[base + 1, base + 2, base]).estimates("m", "x")
    assert found["gap"].value == pytest.approx(1.5) and found["met"].value == pytest.approx(base.mean() + 1.5)
    assert found["gap"].interval.high - found["gap"].interval.low < 1e-6, "each sample has the same gap"
    assert found["never met"].value == found["c"].value


def test_without_partners_of_training_there_is_no_gap():
    found = crossed(x=[np.ones((2, 60))] * 3)
    found.met["x"] = []
    estimates = found.estimates("m", "x")
    assert (
        math.isnan(estimates["gap"].value) and math.isnan(estimates["met"].value) and estimates["never met"].value == 1
    )


def test_intervals_are_over_samples_and_of_several_runs_over_both():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1, 200))
    assert estimate(scores) == sample_estimate(scores[0])
    runs = np.repeat(rng.normal(size=(4, 1)), 100, axis=1)
    assert estimate(runs).interval.high == pytest.approx(mean_estimate(runs[:, 0]).interval.high)
    scores = rng.normal(size=(2, 60))
    scores[0, :30] = np.nan
    assert estimate(scores).value == pytest.approx((np.nanmean(scores[0]) + scores[1].mean()) / 2)


def test_scores_are_means_over_seeds_of_the_samples_of_all_splits(tmp_path, monkeypatch):
    block = {"partners": {"a": RULES, "b": STRANGER}, "agents": {"x": [str(tmp_path)]}, "splits": ["val", "test"]}
    plan = load_plan(write_plan(tmp_path, runs=None, cross_play={**block, "seeds": [3, 4]}), [])
    (tmp_path / "config.json").write_text("{}")
    agents = cross_play.Agents(plan.cross_play, {"x": [tmp_path]}, tmp_path)
    held = {}
    for (name, split, seed), place in agents.places(tmp_path).items():
        place.mkdir(parents=True)
        (place / "metrics.json").touch()
        n = {"val": 2, "test": 3}[split]
        ids = [f"{split}{i}" for i in range(n)]
        held[place] = SimpleNamespace(sample_ids=ids, scores={"m": np.arange(n) + seed + 10.0 * (name == "b")})
    monkeypatch.setattr(cross_play, "read_predictions", lambda path: held[path.parent])
    scores = cross_play.read(agents, ["m"]).scores["m"]["x"]
    assert len(held) == 8 and scores["a"].tolist() == [[3.5, 4.5, 3.5, 4.5, 5.5]]
    assert (scores["b"] - scores["a"] == 10).all()


def test_worlds_are_pooled_and_compared_where_both_agents_are():
    hard = np.random.default_rng(0).normal(size=(1, 60))
    one, other = crossed(x=[hard] * 3, y=[hard + 1] * 3), crossed(x=[hard + 5] * 3)
    found = cross_play.pooled([one, other])
    assert found.estimates("m", "x")["a"].value == pytest.approx(hard.mean() + 2.5)
    assert found.estimates("m", "y")["a"].value == pytest.approx(hard.mean() + 1)
    assert found.differences("m", "y", "x")["a"].value == pytest.approx(1)
    assert [found.label(name) for name in "xy"] == ["x", "y (1 of 2 worlds)"]
    other.met["x"] = []
    with pytest.raises(ConfigError, match=r"cross_play\.met\.x: the agent met other partners in another world"):
        cross_play.pooled([one, other])


def test_differences_are_paired_by_sample_and_run():
    rng = np.random.default_rng(0)
    hard = rng.normal(size=(3, 60))
    found = crossed(x=[hard + 1] * 3, y=[hard] * 3, z=[hard[:1]] * 3)
    pair = found.differences("m", "x", "y")["a"]
    assert pair.value == pytest.approx(1) and (pair.interval is None or pair.interval.low > 0.99)
    assert found.differences("m", "x", "z")["a"].value == pytest.approx(1 + hard.mean() - hard[0].mean())


def test_page_compares_with_the_reference_and_the_pairs_of_the_plan(tmp_path):
    hard = np.random.default_rng(0).normal(size=(1, 60))
    found = crossed(x=[hard] * 3, y=[hard + 1] * 3, z=[hard + 3] * 3)
    agents = {name: [name] for name in "xyz"}
    block = {"partners": {"a": RULES, "b": STRANGER}, "agents": agents}
    changes = {"runs": None, "cross_play": block, "metrics": {"m": "score"}, "reference": "x"}
    plan = load_plan(write_plan(tmp_path, **changes, comparisons=[["z", "y"], ["z", "x"]]), [])
    table = cross_play_parts(plan, found, "heatmap.png")[-1].splitlines()
    assert [line.split(" | ")[:3] for line in table[2:]] == [
        ["| y", "x", "1.000 [1.000, 1.000]"],
        ["| z", "x", "3.000 [3.000, 3.000]"],
        ["| z", "y", "2.000 [2.000, 2.000]"],
    ]
    with pytest.raises(ConfigError, match="comparisons: 'w' is none of x, y, z"):
        load_plan(write_plan(tmp_path, **changes, comparisons=[["z", "w"]]), [])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"partners": {"a": RULES}}, "at least 2 items"),
        ({"partners": {"a": RULES, "b/c": STRANGER}}, "'b/c' must have only letters"),
        ({"partners": {"a": RULES, "b": STRANGER}, "met": {"PPO": ["c"]}}, "'c' is none of a, b"),
        ({"partners": {"a": RULES, "b": STRANGER}, "splits": ["dev"]}, "splits"),
    ],
)
def test_wrong_plan_is_named(tmp_path, block, message):
    with pytest.raises(ConfigError, match=message):
        load_plan(write_plan(tmp_path, cross_play=block), [])
    worlds = {"worlds": {"w": {"config": "config.yml", "metric": "m"}}, "runs": {"PPO": {"seeds": [0]}}}
    with pytest.raises(ConfigError, match="cross_play has the samples of all worlds, which needs 'pools_worlds: true'"):
        load_plan(write_plan(tmp_path, **worlds, cross_play={"partners": {"a": RULES, "b": STRANGER}}), [])
    with pytest.raises(ConfigError, match="runs is missing"):
        load_plan(write_plan(tmp_path, runs=None, cross_play={"partners": {"a": RULES, "b": STRANGER}}), [])


def test_plan_gives_table_and_heatmap(tmp_path, monkeypatch):
    commands = []

    def run_all(given, n_jobs):
        commands.append([*given])
        return {name: code for name, each in given.items() if (code := cli.main([*each.arguments]))}

    monkeypatch.setattr(cross_play, "run_all", run_all)
    config = make_config(
        tmp_path,
        reward_fn={"id": "length_penalty", "args": {"max_length": 1}},
        env__args__max_turns=2,
        env__args__partner={"id": "several", "args": {"partners": [RULES, {**RULES, "name": "again"}]}},
        train_evaluation__n_iters=1,
        train_evaluation__metrics=[{"id": "conversation"}],
    )
    write_config(tmp_path, config)
    assert train(tmp_path, config) == 0
    block = {"partners": {"known": RULES, "stranger": STRANGER}, "agents": {"PPO": [str(run_folder(tmp_path))]}}
    plan = write_plan(tmp_path, runs=None, set=None, cross_play=block, metrics={"conversation/turns": "turns"})
    command = ["benchmark", str(plan), "--output_path", str(tmp_path / "out")]
    assert cli.main(command) == 0
    page = (tmp_path / "out" / "page.md").read_text()
    assert "| agent | known | stranger | met | never met | gap |" in page and " * |" in page
    assert (tmp_path / "out" / "cross_play.png").stat().st_size > 1000
    numbers = json.loads((tmp_path / "out" / "cross_play.json").read_text())
    assert numbers["met"] == {"PPO": ["known"]}
    assert numbers["estimates"]["conversation/turns"]["PPO"]["known"]["value"] == 2.0
    assert cli.main([*command, "--set", "cross_play.met={PPO: []}"]) == 0
    assert commands == [["PPO 0 with known, test 0", "PPO 0 with stranger, test 0"], []]
    assert json.loads((tmp_path / "out" / "cross_play.json").read_text())["met"] == {"PPO": []}
