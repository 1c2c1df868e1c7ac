"""Every shipped config is valid, and names only components and arguments that exist."""

from pathlib import Path

import pytest

from rl4dialog.core.config import OnPolicyConfig, load_config
from rl4dialog.core.features import all_ids
from rl4dialog.core.files import write_json
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.conditions import refuse_useless

FOLDER = Path(__file__).parents[1] / "task_configs"
CONFIGS = sorted(path for path in FOLDER.glob("*/*.yml") if path.parent.name not in ("accelerate", "benchmarks"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_config_is_valid_and_says_how_it_is_run(path):
    check_components(load_config(path))
    assert f"--config_path task_configs/{path.parent.name}/{path.name}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_resolved_config_is_the_same_config(path, tmp_path):
    config = load_config(path)
    write_json(tmp_path / "config.json", config.model_dump(mode="json"))
    assert load_config(tmp_path / "config.json") == config


@pytest.mark.long
def test_on_policy_configs_switch_to_every_algorithm_by_one_key():
    shapes = {}  # one config for each set of keys, policy, partner and number of environments
    for path in CONFIGS:
        config = load_config(path)
        if isinstance(config, OnPolicyConfig):
            keys = frozenset(flatten(config.model_dump(mode="json", exclude_unset=True)))
            partner = config.env.args.partner and config.env.args.partner.id
            shapes[keys, config.alg.id, config.policy_id, partner, config.env.n_envs] = path
    assert len(shapes) > 20
    for path in shapes.values():
        for id in all_ids()["algorithm"]:
            config = load_config(path, [f"alg.id={id}"])
            check_components(config)
            refuse_useless(config)
