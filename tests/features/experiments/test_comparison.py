"""Comparisons of runs, and their page."""

import csv
import re
from dataclasses import replace

import pytest
from run_files import CONFIG, prediction, write_json, write_lines, write_run
from runs import DENSE_REWARD, make_config, run_folder, train, trained_run
from scipy import stats

from rl4dialog.cli import main
from rl4dialog.core.errors import DataError
from rl4dialog.features.experiments.comparison import (
    ONE_RUN_EACH,
    compare,
    compared_metrics,
    config_differences,
    group_curves,
    group_runs,
    write_comparison,
)
from rl4dialog.features.experiments.tables import metric_rows
from rl4dialog.functional.statistics import Estimate, Interval
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.curves import panels


@pytest.fixture
def runs(tmp_path):
    """Two seeds of one config, and one of another."""
    nlpo = {**CONFIG["alg"], "id": "nlpo", "args": {"top_mask": 0.9}}
    return [
        read_run(write_run(tmp_path / "ppo_0", n_iters=3, seed=0)),
        read_run(write_run(tmp_path / "nlpo", n_iters=3, reward=5.0, n_prompts=80, alg=nlpo)),
        read_run(write_run(tmp_path / "ppo_1", n_iters=5, reward=1.0, seed=1)),
    ]


def test_runs_that_differ_in_the_seed_are_one_group(runs):
    groups = group_runs(runs)
    assert [(group.label, group.seeds) for group in groups] == [("ppo", [0, 1]), ("nlpo", [0])]
    assert config_differences(groups) == {"alg.id": ["ppo", "nlpo"], "alg.args.top_mask": ["", "0.9"]}


def test_a_run_that_keeps_the_model_before_training_ends_with_it(runs):
    (group,) = group_runs([replace(runs[0], kept=0)])
    assert group.scores("test", "m", 0) == group.scores("test", "m", -1) == [0.5]
    assert group.last_predictions("test").replies[0] == "reply 0 at 0"


def test_curve_is_the_mean_between_lowest_and_highest_as_far_as_the_shortest(runs):
    panel = panels(runs)[0]
    ppo, nlpo = group_curves(group_runs(runs), panel, "rollout/task_reward")
    assert ppo.x == {"iterations": [1, 2, 3], "agent tokens": [100, 200, 300], "seconds of training": [5, 10, 15]}
    assert list(ppo.y) == pytest.approx([0.6, 0.7, 0.8])
    assert list(ppo.low) == pytest.approx([0.1, 0.2, 0.3]) and list(ppo.high) == pytest.approx([1.1, 1.2, 1.3])
    assert list(nlpo.low) == list(nlpo.y) == list(nlpo.high)


def test_axes_are_those_that_all_runs_have(runs, tmp_path):
    folder = write_run(tmp_path / "other", alg={**CONFIG["alg"], "id": "a2c"})
    write_lines(folder / "rollout_info.jsonl", [{"iteration": i, "rollout/task_reward": 1.0} for i in (1, 2, 3)])
    write_lines(folder / "training_info.jsonl", [])
    curves = group_curves(group_runs([*runs, read_run(folder)]), panels(runs)[0], "rollout/task_reward")
    assert [list(curve.x) for curve in curves] == [["iterations"]] * 3


def test_metrics_of_seeds_have_students_intervals(runs):
    runs[0].metrics["test"][3]["m"] = 0.8
    ppo, nlpo = compared_metrics(group_runs(runs), "test")[0].groups
    assert ppo.before == Estimate(0.5) and ppo.difference is None  # equal values do not show their spread
    assert ppo.after is not None and ppo.after.value == pytest.approx(0.9)
    assert ppo.after.interval is not None and 0.9 - ppo.after.interval.low == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert nlpo.after is not None and nlpo.after.interval is not None
    assert nlpo.difference == Estimate(pytest.approx(0.1))


def test_differences_of_groups_are_welchs(tmp_path):
    values = {"a": (0.2, 0.25, 0.22), "b": (0.8, 0.9, 0.85)}
    runs = []
    for name, scores in values.items():
        for seed, score in enumerate(scores):
            runs.append(read_run(write_run(tmp_path / f"{name}_{seed}", seed=seed, reward_fn={"id": name})))
            runs[-1].config["train_evaluation"]["keep_best"] = "m"
            runs[-1].metrics["test"][3]["m"] = score
    other = compared_metrics(group_runs(runs), "test")[0].groups[1]
    low, high = stats.ttest_ind(values["b"], values["a"], equal_var=False).confidence_interval()
    assert other.difference is not None
    assert other.difference.interval == Interval(pytest.approx(low), pytest.approx(high)) and other.effect == "better"


def test_single_runs_have_paired_intervals_over_samples(tmp_path):
    folders = [write_run(tmp_path / name, n_prompts=80, reward_fn={"id": name}) for name in ("a", "b")]
    rows = [prediction(i, "other", m=score) for i, score in enumerate((0.0, 0.25) * 40)]
    write_json(folders[1] / "epoch_3_test_split_predictions.json", rows)
    for folder, m in zip(folders, (1.0, 0.125), strict=True):
        metrics = [{"epoch": 0, "metrics": {"m": 0.5}}, {"epoch": 3, "metrics": {"m": m}}]
        write_lines(folder / "test_split_metrics.jsonl", metrics)
        write_json(folder / "config.json", {"name": folder.name, "train_evaluation": {"keep_best": "m"}})
        write_json(folder / "test_split_references.json", {"m": 0.9})
    (found,) = compared_metrics(group_runs([read_run(folder) for folder in folders]), "test")
    assert (found.key, found.direction, found.reference) == ("m", "higher", 0.9)
    first, second = found.groups
    assert first.after is not None and first.after.interval is not None and first.effect == ""
    assert second.after is not None and second.after.interval is not None
    assert 0 <= second.after.interval.low < 0.125 < second.after.interval.high <= 0.25
    assert second.difference is not None and second.difference.interval is not None
    assert second.difference.value == pytest.approx(-0.875)
    assert (second.effect, second.note) == ("", ONE_RUN_EACH), "another seed may differ by more"
    assert -1 <= second.difference.interval.low < -0.875 < second.difference.interval.high <= -0.75
    write_json(folders[1] / "test_split_references.json", {"m": 0.8})
    (found,) = compared_metrics(group_runs([read_run(folder) for folder in folders]), "test")
    assert found.reference is None, "they differ between the runs"


def test_seed_that_was_run_twice_counts_once(runs, tmp_path):
    again = read_run(write_run(tmp_path / "ppo_0_again", n_iters=3, seed=0))
    runs[0].metrics["test"][3]["m"], again.metrics["test"][3]["m"] = 0.7, 0.9
    first, *_ = group_runs([*runs, again])
    assert first.scores("test", "m", -1) == pytest.approx([0.8, 1.0])


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("p/ppo_seed_0", "p/ppo_seed_1"), ["ppo"]),
        (("parent/seed_0", "parent/seed_1"), ["parent"]),
        (("p/a-10", "p/a-11"), ["a"]),
        (("p/gpt2a", "p/gpt2b"), ["gpt2"]),
        (("a/run", "b/run"), ["run (1)", "run (2)"]),
    ],
)
def test_group_is_called_what_its_folders_have_in_common(tmp_path, names, labels):
    folders = [write_run(tmp_path / name, seed=i, reward_fn={"id": name[0]}) for i, name in enumerate(names)]
    assert [group.label for group in group_runs([read_run(folder) for folder in folders])] == labels


def test_page_shows_groups_differences_curves_and_metrics(tmp_path):
    folders = [write_run(tmp_path / f"ppo_{seed}", seed=seed) for seed in range(3)]
    folders.append(write_run(tmp_path / "a2c", alg={**CONFIG["alg"], "id": "a2c"}))
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Comparison of ppo, a2c" in page and "<td>0, 1, 2</td>" in page
    assert "<tr><th>alg.<wbr>id</th><td>ppo</td><td>a2c</td></tr>" in page
    assert "95 % intervals, over seeds for groups" in page and "at least 50 samples" in page
    assert page.count("<svg") == 3 * 5, "task reward, two parts, KL, entropy, over three axes; not what is constant"
    assert page.count('data-axis="agent tokens"') == 5
    assert "<th>difference</th>" in page and "Difference: after training" in page and '<ul class="legend">' in page
    page = write_comparison(folders[:3], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "ifference" not in page[page.index("<body") :] and '<ul class="legend">' not in page, "a single group"
    assert ONE_RUN_EACH not in page
    page = write_comparison(folders[2:], tmp_path / "page.html").read_text(encoding="utf-8")
    assert ONE_RUN_EACH in page and '<tr class="' not in page


def test_different_rewards_have_no_difference(tmp_path):
    scores = {"reward": 0.5, "reward/meteor": 0.5, "conversation/return": 0.5, "lexical/meteor": 0.5}
    folders = []
    for name, weight in (("a", 1.0), ("b", 2.0)):
        parts = [{"id": "meteor", "weight": weight}, {"id": "length_reward"}]
        folders.append(write_run(tmp_path / name, reward_fn={"id": "composite", "args": {"rewards": parts}}))
        write_lines(folders[-1] / "test_split_metrics.jsonl", [{"epoch": i, "metrics": scores} for i in (0, 3)])
    metrics = compared_metrics(group_runs(list(map(read_run, folders))), "test")
    assert {each.key: each.groups[1].difference for each in metrics} == {
        "reward": None,
        "reward/meteor": Estimate(0.0),
        "conversation/return": None,
        "lexical/meteor": Estimate(0.0),
    }
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<small>another reward: reward_fn.args.rewards</small>") == 2


def test_samples_of_all_groups_stand_side_by_side(tmp_path):
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("a", "b")]
    rows = [prediction(i, f"reply {i} of <b>", m=1) for i in (2, 1)]
    write_json(folders[1] / "epoch_3_test_split_predictions.json", rows)
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<article") == 2, "the samples that both have"
    card = page[page.index("<article") : page.index("</article>")]
    assert card.index("<h3>a</h3>") < card.index("reply 1 <mark>at 3</mark>") < card.index("<h3>b</h3>")
    assert "reply 1 <mark>of &lt;b&gt;</mark>" in card and "hidden" not in card
    write_json(folders[1] / "epoch_3_test_split_predictions.json", [prediction(77, "no common sample", m=1)])
    assert "<article" not in write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")


def test_warnings_and_notes_name_their_run(tmp_path):
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("a", "b")]
    write_lines(folders[1] / "warnings.jsonl", [{"iteration": 2, "message": "KL explodes", "advice": "Stop."}])
    with open(folders[0] / "training_info.jsonl", "a") as file:
        file.write("{")
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "b: Iteration 2: KL explodes" in page and "a: The last line of training_info.jsonl is truncated" in page


def test_runs_without_iterations_are_compared_by_their_metrics(tmp_path):
    folders = [write_run(tmp_path / name, seed=i) for i, name in enumerate("ab")]
    for folder in folders:
        (folder / "rollout_info.jsonl").unlink()
        (folder / "training_info.jsonl").unlink()
    scores = [{"epoch": epoch, "metrics": {"m": 0.5 + 0.1 * epoch}} for epoch in (0, 3)]
    write_lines(folders[0] / "test_split_metrics.jsonl", scores)
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" not in page and "0.900 <small>-0.371 … 2.171</small>" in page
    with pytest.raises(DataError, match=r"/a is given twice; pass every run once"):
        write_comparison([folders[0]] * 2, tmp_path / "page.html")


def test_what_runs_share_is_compared_and_the_rest_is_named(tmp_path):
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("meteor", "rouge")]
    for folder, key in zip(folders, ("a", "b"), strict=True):
        metrics = [{"epoch": i, "metrics": {"m": 0.5 + i / 6, "reward": 0.1, key: 1.0}} for i in (0, 3)]
        write_lines(folder / "test_split_metrics.jsonl", metrics)
    found = compare(folders)
    assert [each.key for each in found.shared] == ["m"] and {each.key for each in found.left_out} == {
        "reward",
        "a",
        "b",
    }
    page = write_comparison(folders, tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Not compared, because the runs have different rewards: reward." in page
    assert "Not compared, because only some runs have them: a, b." in page
    assert list(metric_rows(folders)[1]) == ["m"]


def test_tables_have_the_numbers_of_the_page(tmp_path, capsys):
    algs = {"one_run": CONFIG["alg"], "other": {**CONFIG["alg"], "id": "a2c"}}
    folders = [write_run(tmp_path / name, n_prompts=60, alg=alg) for name, alg in algs.items()]
    files = ["--csv", str(tmp_path / "t.csv"), "--latex", str(tmp_path / "t.tex")]

    def row_of_m():
        with (tmp_path / "t.csv").open(encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if row["metric"] == "m"]

    assert main(["report", str(folders[0]), *files]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [str(tmp_path / "t.csv"), str(tmp_path / "t.tex")]
    (m,) = row_of_m()
    assert (m["split"], m["run"], m["before"], m["after"], m["difference"]) == ("test", "", "0.5", "1.0", "0.5")
    assert float(m["before_low"]) < 0.5 < float(m["before_high"]) and 0 < float(m["difference_low"]) < 0.5
    table = (tmp_path / "t.tex").read_text(encoding="utf-8")
    assert "\nmetric & before & after & change \\\\\n" in table and "\nm & $0.500$ {\\small [$0.3" in table
    assert main(["report", *map(str, folders), "--output", str(tmp_path / "c.html"), *files]) == 0
    found = [(row["run"], row["after"], row["difference"]) for row in row_of_m()]
    assert found == [("one_run", "1.0", ""), ("other", "1.0", "0.0")]
    assert "metric & one\\_run & other" in (tmp_path / "t.tex").read_text(encoding="utf-8")


def test_runs_of_two_seeds_are_compared_by_the_command(tmp_path, monkeypatch):
    config = make_config(tmp_path, train_evaluation__n_iters=3, reward_fn=DENSE_REWARD)
    trained_run(tmp_path, config)
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path, {**config, "seed": 1}, "--experiment_name", "f") == 0
    assert main(["report", str(run_folder(tmp_path)), str(run_folder(tmp_path).parent / "f")]) == 0
    comparison = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "<td>0, 1</td>" in comparison and "Config differences" not in comparison
    assert len(re.findall("<svg", comparison)) > 10
