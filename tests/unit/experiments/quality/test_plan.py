"""A plan names its runs, and mistakes in it are named."""

from pathlib import Path

import pytest
from plans import write_plan
from runs import make_config, write_config

from rl4dialog.commands.parser import make_parser
from rl4dialog.core.config import load_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.experiments.quality.plan import filled, load_plan, planned_runs
from rl4dialog.training.building.components import check_components

ROOT = Path(__file__).parents[4]
SHIPPED = sorted((ROOT / "task_configs" / "benchmarks").glob("*.yml"))


def test_runs_have_their_seed_and_overrides(tmp_path):
    write_config(tmp_path, make_config(tmp_path))
    path = write_plan(tmp_path, set=["datapool.args.path={output}/dialogues"])
    runs = planned_runs(load_plan(path, []), path, tmp_path)
    assert [run.name for run in runs] == ["ppo_seed_0", "ppo__small_steps_seed_0", "ppo_seed_1"]
    assert [run.config.seed for run in runs] == [0, 0, 1]
    assert runs[1].config.alg.args["learning_rate"] == 1e-6
    assert runs[1].config.datapool.args["path"] == f"{tmp_path}/dialogues"
    assert load_plan(path, ["runs.PPO.seeds=[7]"]).runs["PPO"].seeds == [7]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"title": None}, "the key 'title' is missing"),
        ({"metric": {}}, "metric: unknown key; did you mean 'metrics'"),
        ({"runs": {"PPO": {"config": "config.yml", "seed": [0]}}}, "runs.PPO.seed: unknown key; did you mean 'seeds'"),
        ({"runs": {"PPO": {"config": "config.yml", "seeds": [1, 1]}}}, r"a seed is listed twice: \[1, 1\]"),
        ({"runs": {"PPO": {"config": "config.yml", "seeds": []}}}, "runs.PPO.seeds"),
        ({"metrics": {}}, "metrics"),
    ],
)
def test_mistakes_are_named(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_plan(write_plan(tmp_path, **changes), [])


GROUP = {"config": "config.yml", "seeds": [0]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": {"A": GROUP, "B": GROUP}}, "a_seed_0 and b_seed_0 have the same"),
        ({"runs": {"PPO 1": GROUP, "PPO-1": GROUP}}, "the labels PPO 1, PPO-1 give several runs the same folder"),
        ({"set": ["seed=5"]}, "seed has no effect, because each run has one of its seeds"),
    ],
)
def test_plan_that_measures_nothing_new_is_refused(tmp_path, changes, message):
    write_config(tmp_path, make_config(tmp_path))
    path = write_plan(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        planned_runs(load_plan(path, []), path, tmp_path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_plans_are_valid(path):
    plan = load_plan(path, [])
    for run in planned_runs(plan, path, Path("output")):
        check_components(run.config)
    for step in plan.steps.values():
        args = make_parser().parse_args(filled(step.command, Path("output")))
        if args.command == "train":
            check_components(load_config(ROOT / args.config_path, args.overrides))
    assert f"rl4dialog benchmark task_configs/benchmarks/{path.name}" in path.read_text(encoding="utf-8")
