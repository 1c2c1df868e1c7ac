"""A plan names its runs, and mistakes in it are named."""

from pathlib import Path

import pytest
from plans import IN_WORLDS, write_plan
from runs import make_config, write_config

from rl4dialog.commands.parser import make_parser
from rl4dialog.core.config import load_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.files import write_json
from rl4dialog.features.experiments.quality.plan import filled, load_plan, planned_runs
from rl4dialog.runs.run_folder import CONFIG_FILE, RESULT_FILE
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


def test_rows_are_trained_in_every_world_with_the_overrides_of_both(tmp_path):
    write_config(tmp_path, make_config(tmp_path))
    path = write_plan(tmp_path, **IN_WORLDS)
    runs = planned_runs(load_plan(path, []), path, tmp_path)
    by_name = {run.name: run.config for run in runs}
    assert list(by_name) == [
        *("short_ppo_seed_0", "short_small_seed_0", "long_ppo_seed_0", "long_small_seed_0", "long_smaller_seed_1"),
        *("short_ppo_seed_1", "short_small_seed_1", "long_ppo_seed_1", "long_small_seed_1"),
    ]
    assert [by_name[f"{world}_ppo_seed_0"].env.args.max_episode_length for world in ("short", "long")] == [5, 10]
    smaller, small = by_name["long_smaller_seed_1"].alg.args, by_name["short_small_seed_0"].alg.args
    assert smaller["n_epochs"] == 2 != small["n_epochs"] and smaller["learning_rate"] == 1e-7
    for run in runs:  # the command refuses a key that is given twice
        keys = [text.partition("=")[0] for text in run.overrides]
        assert len(set(keys)) == len(keys)


def test_a_run_of_another_algorithm_is_found_again(tmp_path):
    """What does not fit the other algorithm is left out of the config, also of the one to which a run is compared."""
    write_config(tmp_path, make_config(tmp_path, alg__args__vf_coef=0.5))
    runs = "runs={RLOO: {config: config.yml, set: [alg.id=rloo, alg.args.n_generations=2], seeds: [0]}}"
    path = write_plan(tmp_path)

    def planned():
        return planned_runs(load_plan(path, [runs]), path, tmp_path / "out")[0]

    trained, folder = planned(), tmp_path / "run"
    trained.check()
    folder.mkdir()
    write_json(folder / CONFIG_FILE, trained.config.model_dump(mode="json"))
    write_json(folder / RESULT_FILE, {"iterations": 1})
    again = planned()
    assert again.is_done(folder) and again.config_hash == planned().config_hash
    assert not planned().is_done(tmp_path / "none")


def test_the_hash_of_a_config_is_the_same_in_every_output_folder(tmp_path):
    write_config(tmp_path, make_config(tmp_path))
    path = write_plan(tmp_path, set=["datapool.args.path={output}/{seed}"])
    hashes = [
        [run.config_hash for run in planned_runs(load_plan(path, extra), path, output)]
        for output, extra in (
            (tmp_path, []),
            (tmp_path / "other", ["runs.PPO.set=['env.vec_env=blocks','logging={}']"]),
            (tmp_path, ["runs.PPO.set=['alg.args.n_epochs=7']"]),
        )
    ]
    assert hashes[0] == hashes[1] and len({*hashes[0], *hashes[2]}) == 5


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"runs": {"PPO": {}}}, r"runs.PPO.config: set it, or the plan's 'worlds'"),
        ({"runs": {"PPO": {"config": "x"}}}, r"runs.PPO.seeds is missing; set it, or 'seeds' of the plan"),
        ({**IN_WORLDS, "runs": {"PPO": {"config": "x"}}}, "runs.PPO.config: remove it: the worlds have configs"),
        ({**IN_WORLDS, "runs": {"PPO": {"adds_to": "PPO"}}}, "runs.PPO.adds_to: 'PPO' is none of them"),
        ({**IN_WORLDS, "runs": {"PPO": {"set_in": {"lon": []}}}}, "set_in: 'lon' is none of short, long; did you mean"),
        ({**IN_WORLDS, "comparisons": [["PPO", "big"]]}, "comparisons: 'big' is none of PPO, small, smaller"),
        ({"runs": {"before training": {"config": "x"}}}, "'before training' names the runs of the other row"),
        ({"pools_worlds": True}, "pools_worlds needs worlds with the same metric, not none"),
        ({"title": None}, "the key 'title' is missing"),
        ({"metric": {}}, "metric: unknown key; did you mean 'metrics'"),
        ({"runs": {"PPO": {"config": "config.yml", "seed": [0]}}}, "runs.PPO.seed: unknown key; did you mean 'seeds'"),
        ({"runs": {"PPO": {"config": "config.yml", "seeds": [1, 1]}}}, r"a seed is listed twice: \[1, 1\]"),
        ({"runs": {"PPO": {"config": "config.yml", "seeds": []}}}, "runs.PPO.seeds"),
        ({"metrics": {}}, "metrics"),
        (
            {"steps": {"a": {"command": ["make"], "creates": "x", "for_each": [1]}}},
            "steps.a: creates: it must have {each}",
        ),
        ({"steps": {"a": {"command": ["make"], "creates": "{each}"}}}, "steps.a: creates: it must have {each}"),
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
    for _, *command in (texts for step in plan.steps.values() for texts in step.commands):
        args = make_parser().parse_args(filled(command, Path("output"), world=next(iter(plan.compared_in))))
        if args.command == "train":
            check_components(load_config(ROOT / args.config_path, args.overrides))
    assert f"rl4dialog benchmark task_configs/benchmarks/{path.name}" in path.read_text(encoding="utf-8")
