"""The page says what was measured, with intervals, and names what is missing."""

import math
from dataclasses import replace

import pytest
from matplotlib import image
from scipy import stats

from rl4dialog.experiments.quality.outcomes import Outcomes
from rl4dialog.experiments.quality.page import (
    markdown_page,
    matched_kl,
    paired_differences,
    plot_frontier,
    plot_worlds,
    worlds_page,
)
from rl4dialog.experiments.quality.plan import QualityPlan, WinRate
from rl4dialog.runs.report.metrics import mean_estimate

KEY, OTHER = "intent/accuracy", "lexical/meteor"


def table(page, heading):
    """Cells of the table under a heading, by the first cell."""
    lines = [line for line in page.split(f"## {heading}")[1].split("\n##")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_the_tables_have_means_and_intervals(plan, outcomes):
    page = markdown_page(plan, outcomes, "rl4dialog benchmark x.yml", "frontier.png")
    test = table(page, "Test metrics")
    assert test["before training"][1:3] == ["0.500", "0.200"]
    assert test["PPO"][0] == "5" and test["PPO"][1].startswith("0.620 [0.60")
    assert test["PPO"][3:] == ["30 min", "0.200", "50k"]
    assert test["reference replies"][1:3] == ["0.900", "1.000"]
    assert table(page, "Change by training")["RLOO"] == ["0.060", "0.000"]
    assert table(page, "Probability of improvement")["RLOO"] == ["0.000", "0.500"]
    assert "**1 run(s) failed or are missing, and are not in the tables: rloo_seed_3.**" in page
    assert "```\nrl4dialog benchmark x.yml\n```" in page
    alone = markdown_page(plan, Outcomes(outcomes.of("PPO")), "c", "p.png")
    assert "Probability of improvement" not in alone and "rloo" not in alone


def test_runs_without_text_have_neither_kl_nor_tokens(plan, outcomes):
    runs = [replace(run, kls=[], tokens=[math.nan] * 3, hours=0.01) for run in outcomes.done]
    page = markdown_page(plan, Outcomes(runs), "c", "p.png")
    assert table(page, "Test metrics")[""] == ["seeds", "intent", "METEOR", "training time"]
    assert table(page, "Test metrics")["PPO"][3:] == ["36 s"]
    assert table(page, "Test metrics")["reference replies"][3:] == [""]
    assert "nan" not in page and "Tokens to" not in page and "same KL" not in page


def test_curves_are_compared_at_the_same_kl(plan, outcomes):
    assert matched_kl(outcomes) == pytest.approx(0.1)
    page = markdown_page(plan, outcomes, "command", "frontier.png")
    matched = table(page, "At the same KL: 0.100 nats per token")
    assert matched["PPO"][0].startswith("0.060 [")  # half of the gain at half of the KL
    assert matched["RLOO"][0] == "0.060"
    ppo = outcomes.of("PPO")
    far, near = (replace(ppo[0], kls=[0.0, kl]) for kl in (0.9, 0.05))
    assert matched_kl(Outcomes([far, *ppo[1:]])) == pytest.approx(0.2)
    assert matched_kl(Outcomes([far, near, near])) == pytest.approx(0.05)
    assert matched_kl(Outcomes([far, near])) == pytest.approx(0.05)


def test_tokens_are_compared_at_a_reward_that_every_run_reaches(plan, outcomes):
    page = markdown_page(plan, outcomes, "c", "p.png")
    assert "reaches 0.048: 80% of the way" in page  # to the best mean of the iterations 0, 0.06 and 0.12
    tokens = table(page, "Tokens to the same training reward")
    assert tokens["RLOO"] == ["50.000", "n/a"]
    assert tokens["PPO"] == ["30.000", "0.120 [0.100, 0.140]"]


def test_the_frontier_is_drawn(plan, outcomes, tmp_path):
    plot_frontier(plan, outcomes, tmp_path / "frontier.png")
    assert image.imread(tmp_path / "frontier.png").std() > 0.01


def test_the_win_rate_is_on_the_page_if_the_plan_has_one(plan, outcomes):
    assert "Win rate" not in markdown_page(plan, outcomes, "c", "p.png")
    with_rate = plan.model_copy(update={"win_rate": WinRate(score="judge", length="words")})
    for run in outcomes.done:
        run.changes.update({"judge": [1.0, 1.0, 1.0, -1.0], "words": [0.0, 0.0, 0.0, 0.0]})
    cells = table(markdown_page(with_rate, outcomes, "c", "p.png"), "Win rate against the start")["RLOO"]
    assert [cell.split(" [")[0] for cell in cells] == ["0.750", "0.750"]


def test_a_mean_without_the_number_of_one_run_is_none(plan, outcomes):
    first, *others = outcomes.of("PPO")
    runs = [replace(first, after={**first.after, next(iter(plan.metrics)): math.nan}), *others]
    page = markdown_page(plan, Outcomes(runs), "c", "p.png")
    assert table(page, "Test metrics")["PPO"][1] == table(page, "Change by training")["PPO"][0] == "n/a"


@pytest.fixture
def ladder(outcomes):
    """A plan of two worlds, in the second of which RLOO has not run, and its outcomes."""
    runs = [
        replace(run, world=world, after={**run.after, KEY: run.after[KEY] + 0.1 * (run.seed % 2)})
        for world in "ab"
        for run in outcomes.done
        if (world, run.row) != ("b", "RLOO")
    ]
    world = {"config": "x.yml", "metric": KEY, "ceiling": 0.81, "level": 0.55}
    plan = {
        "title": "A title",
        "worlds": {"a": world, "b": world},
        "seeds": [0, 1, 2, 3, 4],
        "runs": {"PPO": {}, "RLOO": {}},
        "reference": "RLOO",
        "comparisons": [["PPO", "RLOO"]],
        "metrics": {OTHER: "METEOR"},
    }
    return QualityPlan.model_validate(plan), Outcomes(runs, ["b_rloo_seed_0"])


def test_rows_of_a_world_are_compared_by_seed(ladder):
    plan, outcomes = ladder
    page = worlds_page(plan, outcomes, "command", "curves.png", "dots.png")
    rows = table(page, "a\n")
    cells = {row: dict(zip(rows[""], rows[row], strict=True)) for row in ("PPO", "RLOO")}
    assert cells["PPO"]["IQM"] == "0.657"  # of .60, .71, .62, .73, .64
    assert cells["PPO"]["more than RLOO"] == "0.050 [0.025, 0.075]"  # gains of .10, .11, .12 instead of .06
    assert cells["RLOO"]["more than RLOO"] == "0.000"
    assert cells["PPO"]["of the way to the ceiling"] == f"{0.05 / (0.81 - (0.56 + 0.66 + 0.56) / 3):.3f}"
    assert cells["PPO"]["tokens to 0.55"] == "25,000 (5 of 5)"  # that of seed 2, whose first .06 cost 30,000
    assert cells["RLOO"]["tokens to 0.55"] == "43,333 (3 of 3)"
    assert cells["RLOO"]["tokens"] == "50,000" and cells["RLOO"]["METEOR"].startswith("0.200")
    assert set(table(page, "b\n")) == {"", "---", "PPO"} and "more than PPO" in table(page, "b\n")[""]
    assert (
        "**1 run(s) failed or are missing, and are not in the tables: b_rloo_seed_0.**" in page
        and "other weights" not in page
    )
    assert "IQM is the mean of the middle half" in page and "### At the same KL" in page


def test_comparisons_are_adjusted_for_all_of_the_plan(ladder):
    plan, outcomes = ladder
    page = worlds_page(plan, outcomes, "command", "curves.png", "dots.png")
    rows = table(page, "Comparisons")
    p = stats.ttest_rel([0.6, 0.71, 0.62], [0.56, 0.66, 0.56]).pvalue
    assert rows["a"][2:] == ["3", "0.050 [0.025, 0.075]", f"{p:.3f}"[1:], f"{2 * p:.3f}"[1:]]
    assert rows["b"][2:] == ["0", "n/a", "n/a", "n/a"]
    plan = plan.model_copy(
        update={"runs": {**plan.runs, "RLOO": plan.runs["RLOO"].model_copy(update={"worlds": ["a"]})}}
    )
    rows = table(worlds_page(plan, outcomes, "command", "curves.png", "dots.png"), "Comparisons")
    assert "b" not in rows and rows["a"][-1] == f"{p:.3f}"[1:], "what the plan does not compare is no comparison"


def test_equal_differences_are_no_certainty(ladder):
    _, outcomes = ladder
    base = outcomes.of_world("b").of("PPO")
    better = [replace(run, after={**run.after, KEY: run.after[KEY] + 0.02}) for run in base]
    assert mean_estimate(paired_differences(better, base, KEY)).interval is None


def test_a_run_that_began_elsewhere_is_named(ladder):
    plan, outcomes = ladder
    odd = replace(outcomes.done[0], made_by={**outcomes.done[0].made_by, "first_weights": "other"})
    same_seed = replace(odd, row="third", made_by=outcomes.done[0].made_by)
    plan = plan.model_copy(update={"runs": {**plan.runs, "third": plan.runs["PPO"]}})
    page = worlds_page(plan, Outcomes([odd, *outcomes.done[1:], same_seed]), "c", "curves.png", "dots.png")
    assert "other weights than the rest of their seed: PPO with seed 0." in page


def test_worlds_are_drawn(ladder, tmp_path):
    plot_worlds(*ladder, tmp_path / "curves.png", tmp_path / "dots.png")
    assert all(image.imread(tmp_path / name).std() > 0.01 for name in ("curves.png", "dots.png"))
