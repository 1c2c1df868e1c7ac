"""Every shipped config is valid, and names only components and arguments that exist."""

from pathlib import Path

import pytest

from rl4dialog.core.config import load_config
from rl4dialog.runs.run_folder import write_json
from rl4dialog.training.building.components import check_components

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
