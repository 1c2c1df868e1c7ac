"""The measurement of the warnings: what is judged, and that it is judged again without training."""

import json
from pathlib import Path

import pytest
import yaml
from runs import make_config, write_config

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.plugins import load_imports
from rl4dialog.features.experiments.quality.plan import load_plan, planned_runs
from rl4dialog.training.building.components import check_components

watching = pytest.importorskip("benchmarks.watching")  # with the feature inspection

FOLDER = Path(watching.__file__).parent / "watched_runs"


def write_plan(folder, **changes):
    """A plan of two runs: one whose reward never pays, and a healthy one."""
    write_config(folder, make_config(folder, env__n_envs=12))
    constant = {"trouble": "constant reward", "warnings": ["reward_constant"]}
    constant["set"] = ["reward_fn={id: regex, args: {pattern: XYZ}}"]
    plan = {
        "title": "Two runs",
        "metrics": {"lexical/rouge_rouge1": "ROUGE-1"},
        "set": ["train_evaluation.n_iters=3", "train_evaluation.eval_every=100"],
        "runs": {
            "never pays": {"config": "config.yml", "seeds": [0], **constant, **changes},
            "healthy": {"config": "config.yml", "seeds": [1]},
        },
    }
    path = folder / "plan.yml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return str(path)


def test_runs_are_trained_once_and_judged_by_their_logs(tmp_path):
    path, output = write_plan(tmp_path), tmp_path / "output"
    sick, healthy = watching.measure([path], [], output, "the command")["Two runs"]
    assert (sick.name, sick.trouble, sick.stopped) == ("never_pays_seed_0", "constant reward", False)
    assert sick.warnings == {"reward_constant": 3} and sick.named_at == 3 and sick.others == []
    assert (healthy.trouble, healthy.warnings, healthy.iterations) == ("", {}, 3)
    assert healthy.metrics["lexical/rouge_rouge1"][0] >= 0

    logs = output / "plan" / sick.name / "rollout_info.jsonl"
    lines = [json.loads(line) for line in logs.read_text().splitlines()]
    logs.write_text("".join(json.dumps({**line, "rollout/task_reward_std": 0.5}) + "\n" for line in lines))
    missed, _ = watching.measure([path], [], output, "the command")["Two runs"]
    assert missed.named_at is None and missed.others == ["advantages_constant"]

    page = (output / "page.md").read_text()
    assert "False alarms: 0 of 1 healthy runs." in page
    assert "| constant reward | 0 of 1 | never | `advantages_constant` |" in page
    assert "- not named: never_pays_seed_0; warnings: `advantages_constant` (iteration 3)" in page
    written = json.loads((output / "outcomes.json").read_text())
    assert [run["name"] for run in written["Two runs"]] == ["never_pays_seed_0", "healthy_seed_1"]


def test_warning_that_does_not_exist_is_an_error(tmp_path):
    path = write_plan(tmp_path, warnings=["reward_constent"])
    with pytest.raises(ConfigError, match="'reward_constent' is not a warning; did you mean 'reward_constant'"):
        watching.measure([path], [], tmp_path / "output", "the command")


def test_other_warnings_are_told_apart_from_right_ones():
    warnings = {"kl_exploding": 4, "repeated_tokens": 9, "entropy_collapse": 2}
    right = ["kl_exploding", "entropy_collapse"]
    outcome = watching.Outcome("a", "b", right, warnings, 10, False, (0.0, 1.0), {}, 1.0)
    assert outcome.named_at == 2 and outcome.others == ["repeated_tokens"]


def test_records_are_judged_as_in_a_run():
    records = [{"iteration": i, "train/skipped_steps": i // 3} for i in range(1, 6)]
    assert watching.judge(records, watching.RunFacts()) == {"gradient_not_finite": 3}


def test_shipped_plans_are_valid():
    load_imports([str(FOLDER / "faults.py")], FOLDER)
    for path in (FOLDER / "tuning.yml", FOLDER / "test.yml"):
        plan = load_plan(path, [], watching.WatchPlan)
        assert all(bool(group.trouble) == bool(group.warnings) for group in plan.runs.values())
        for run in planned_runs(plan, path, Path("output")):
            check_components(run.config)
