"""The page says what was measured, with intervals, and names what is missing."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib import image
from scipy import stats

from rl4dialog.features.experiments.quality.outcomes import Outcomes, read_outcomes
from rl4dialog.features.experiments.quality.page import holm, matched_kl, paired_differences, plot_worlds, worlds_page
from rl4dialog.features.experiments.quality.plan import QualityPlan, WinRate, load_plan
from rl4dialog.runs.report.metrics import mean_estimate

ROOT = Path(__file__).parents[4]
KEY, OTHER = "intent/accuracy", "lexical/meteor"


def table(page, heading):
    """Cells of the table under a heading, by the first cell."""
    lines = [line for line in page.split(f"## {heading}")[1].split("\n##")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def page_of(plan, outcomes):
    return worlds_page(plan, outcomes, "rl4dialog benchmark x.yml", "curves.png", "dots.png")


def cells_of(plan, outcomes, world="Test metrics\n"):
    """Cells of a world's table, by row and column."""
    rows = table(page_of(plan, outcomes), world)
    return {label: dict(zip(rows[""], cells, strict=True)) for label, cells in rows.items()}


def test_rows_with_their_own_configs_are_compared_in_one_table(plan, outcomes):
    page, cells = page_of(plan, outcomes), cells_of(plan, outcomes)
    assert list(cells) == ["", "---", "before training", "PPO", "RLOO", "reference replies"]
    assert cells["before training"] == dict.fromkeys(cells[""], "") | {"intent": "0.500", "METEOR": "0.200"}
    assert cells["PPO"]["seeds"] == "5" and cells["PPO"]["intent"].startswith("0.620 [0.60")
    assert cells["RLOO"]["change by training"] == "0.060" and cells["RLOO"]["better than PPO"] == "0.000"
    assert [cells["PPO"][name] for name in ("KL", "tokens", "seconds")] == ["0.200", "50,000", "1,800"]
    assert [cells["reference replies"][name] for name in ("intent", "METEOR")] == ["0.900", "1.000"]
    assert "**1 run(s) failed or are missing, and are not in the tables: rloo_seed_3.**" in page
    assert "```\nrl4dialog benchmark x.yml\n```" in page and "![curves over tokens](curves.png)" in page


def test_runs_without_text_have_neither_kl_nor_tokens(plan, outcomes):
    spent = {**outcomes.done[0].spent, "tokens": [math.nan] * 3}
    runs = [replace(run, kls=[0.0, math.nan, math.nan], spent=spent) for run in outcomes.done]
    page, cells = page_of(plan, Outcomes(runs)), cells_of(plan, Outcomes(runs))
    assert {"conversations", "MiB"} <= cells[""].keys() and not {"KL", "tokens", "at equal tokens"} & cells[""].keys()
    assert "nan" not in page and "Equal tokens" not in page and "same KL" not in page and "## Curves" not in page


def test_curves_are_compared_at_the_same_kl(plan, outcomes):
    assert matched_kl(outcomes) == pytest.approx(0.1)
    matched = table(page_of(plan, outcomes), "At the same KL: 0.100 nats per token")
    assert matched["PPO"][0].startswith("0.060 [")  # half of the gain at half of the KL
    assert matched["RLOO"][0] == "0.060"
    ppo = outcomes.of("PPO")
    far, near = (replace(ppo[0], kls=[0.0, kl]) for kl in (0.9, 0.05))
    assert matched_kl(Outcomes([far, *ppo[1:]])) == pytest.approx(0.2)
    assert matched_kl(Outcomes([far, near, near])) == pytest.approx(0.05)
    assert matched_kl(Outcomes([far, near])) == pytest.approx(0.05)


def test_the_win_rate_is_on_the_page_if_the_plan_has_one(plan, outcomes):
    assert "wins" not in cells_of(plan, outcomes)[""]
    with_rate = plan.model_copy(update={"win_rate": WinRate(score="judge", length="words")})
    for run in outcomes.done:
        run.changes.update({"judge": [1.0, 1.0, 1.0, -1.0], "words": [0.0, 0.0, 0.0, 0.0]})
    cells = cells_of(with_rate, outcomes)["RLOO"]
    assert [cells[name].split(" [")[0] for name in ("wins", "wins at equal length")] == ["0.750", "0.750"]


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
    page, cells = page_of(plan, outcomes), cells_of(plan, outcomes, "a\n")
    assert cells["PPO"]["IQM"] == "0.657"  # of .60, .71, .62, .73, .64
    assert cells["PPO"]["more than RLOO"] == "0.050 [0.025, 0.075]"  # gains of .10, .11, .12 instead of .06
    assert cells["RLOO"]["more than RLOO"] == "0.000"
    assert cells["PPO"]["of the way to the ceiling"] == f"{0.05 / (0.81 - (0.56 + 0.66 + 0.56) / 3):.3f} (3 seeds)"
    assert cells["PPO"]["tokens to 0.55"] == "25,000 (5 of 5)"  # that of seed 2, whose first .06 cost 30,000
    assert cells["RLOO"]["tokens to 0.55"] == "43,333 (3 of 3)"
    assert cells["RLOO"]["tokens"] == "50,000" and cells["RLOO"]["METEOR"].startswith("0.200")
    assert set(table(page, "b\n")) == {"", "---", "PPO"} and "more than PPO" in table(page, "b\n")[""]
    assert (
        "**1 run(s) failed or are missing, and are not in the tables: b_rloo_seed_0.**" in page
        and "other weights" not in page
    )
    assert "IQM is the mean of the middle half" in page and "### At the same KL" in page


@pytest.mark.parametrize(
    ("ours", "base", "ceiling", "share"),
    [
        ([0.79, 0.77], [0.75, 0.75, 0.7, 0.7, 0.7], 0.8, "0.600 (2 seeds)"),  # .03 of .05, not of .08
        ([0.5, 0.25, math.nan], [0.25, 0.25, 0.0], 1.0, "0.167 (2 seeds)"),
        ([0.7, 0.4, 0.4], [0.1], 0.6, "n/a"),  # below its ceiling, but above it with the only seed of both
        ([0.7, 0.7], [0.5], 0.6, "2.000 (1 seed)"),
        ([0.6], [0.9], 0.8, "n/a"),  # (.6 - .9) / (.8 - .9) would be 3
        ([0.8, 0.6], [0.7, 0.9], 0.8, "n/a"),
        ([-1.2], [-3.0, -1.0], -1.0, "0.900 (1 seed)"),
    ],
)
def test_the_way_to_the_ceiling_is_that_of_the_same_seeds(ladder, ours, base, ceiling, share):
    plan, outcomes = ladder
    plan.worlds["a"].ceiling = ceiling
    runs = [
        replace(outcomes.done[0], row=row, seed=seed, after={**outcomes.done[0].after, KEY: value})
        for row, values in (("PPO", ours), ("RLOO", base))
        for seed, value in enumerate(values)
    ]
    cells = cells_of(plan, Outcomes(runs), "a\n")
    assert cells["PPO"].get("of the way to the ceiling", "n/a") == share


OUTCOMES = [
    path for path in sorted((ROOT / "docs/outcomes").glob("*.json")) if (ROOT / f"docs/{path.stem}.md").exists()
]


@pytest.mark.parametrize("path", OUTCOMES, ids=lambda path: path.stem)
def test_pages_in_git_have_the_numbers_of_their_outcomes(path):
    plan = load_plan(ROOT / f"task_configs/benchmarks/{path.stem}.yml", [])
    outcomes = sorted(read_outcomes(path), key=lambda run: (list(plan.runs).index(run.row), run.seed))
    kept = (ROOT / f"docs/{path.stem}.md").read_text(encoding="utf-8")
    kept = re.sub(r"(?ms)^## Cross-play$.*?(?=^## )", "", kept)  # its conversations are not in git
    made, kept = (
        [line for line in page.splitlines() if line[:1] == "|"] for page in (page_of(plan, Outcomes(outcomes)), kept)
    )
    assert made == kept


@pytest.mark.skipif(
    "star_partners" not in {path.stem for path in OUTCOMES}, reason="its page went with the feature star"
)
def test_cross_play_in_git_has_the_numbers_that_were_measured():
    page = (ROOT / "docs/star_partners.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "docs/measured/star_partners.json").read_text(encoding="utf-8"))
    for metric, agents in measured["estimates"].items():
        lines = page.split(f"means of `{metric}`")[1].split("Differences:")[0].splitlines()
        rows = [line for line in lines if line.startswith("|")][2:]
        for row, (agent, by_partner) in zip(rows, agents.items(), strict=True):
            name, *cells = row.strip("| ").split(" | ")
            assert name.partition(" (")[0] == agent
            assert [cell[:5] for cell in cells[:2]] == [f"{by_partner[p]['value']:.3f}" for p in ("stranger", "rules")]


def test_comparisons_are_adjusted_for_all_of_the_plan(ladder):
    plan, outcomes = ladder
    rows = table(page_of(plan, outcomes), "Comparisons")
    p = stats.ttest_rel([0.6, 0.71, 0.62], [0.56, 0.66, 0.56]).pvalue
    assert rows["a"][2:] == ["3", "0.050 [0.025, 0.075]", f"{p:.3f}"[1:], f"{2 * p:.3f}"[1:]]
    assert rows["b"][2:] == ["0", "n/a", "n/a", "n/a"]
    plan = plan.model_copy(
        update={"runs": {**plan.runs, "RLOO": plan.runs["RLOO"].model_copy(update={"worlds": ["a"]})}}
    )
    rows = table(page_of(plan, outcomes), "Comparisons")
    assert "b" not in rows and rows["a"][-1] == f"{p:.3f}"[1:], "what the plan does not compare is no comparison"


def test_comparisons_can_pool_worlds_and_be_with_the_runs_before_training(ladder):
    plan, outcomes = ladder
    pairs = [["PPO", "before training"], ["PPO", "RLOO"]]
    plan = plan.model_copy(update={"pools_worlds": True, "comparisons": pairs})
    page = page_of(plan, outcomes)
    (gained, better) = (line.split(" | ")[1:5] for line in page.split("Comparisons")[1].splitlines() if "PPO" in line)
    gains = [run.after[KEY] - run.before[KEY] for run in outcomes.of("PPO")]
    assert len(gains) == 10 and gained == ["PPO", "before training", "10", gained[-1]]
    assert float(gained[-1].split()[0]) == pytest.approx(sum(gains) / 10, abs=1e-3) and better[2] == "3"


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
    page = page_of(plan, Outcomes([odd, *outcomes.done[1:], same_seed]))
    assert "other weights than the rest of their seed: PPO with seed 0." in page


@pytest.mark.parametrize("has_worlds", [True, False])
def test_worlds_are_drawn(ladder, plan, outcomes, has_worlds, tmp_path):
    plot_worlds(*(ladder if has_worlds else (plan, outcomes)), tmp_path / "curves.png", tmp_path / "dots.png")
    assert all(image.imread(tmp_path / name).std() > 0.01 for name in ("curves.png", "dots.png"))


def test_p_values_are_adjusted_by_holms_steps():
    # 2 * .04 is below 3 * .03, of a smaller p-value.
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.9, 0.8, 0.3]) == pytest.approx([1.0, 1.0, 0.9]) and holm([]) == []
    assert holm([math.nan, 0.01, 0.02]) == pytest.approx([math.nan, 0.03, 0.04], nan_ok=True)
