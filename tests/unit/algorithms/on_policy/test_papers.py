"""The settings of papers in docs/algorithms.md are valid, and are what their papers call for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pages import text_of
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.yaml_loader import parse_yaml
from rl4dialog.training.building.components import check_components

ROWS = re.findall(r"^\| ([^|(]+) \([^|]+\) \| `(\{id: .*\})` \|$", text_of("docs/algorithms.md"), re.M)


def test_table_has_all_papers() -> None:
    assert [name for name, _ in ROWS] == ["RLOO", "GRPO", "Dr. GRPO", "DAPO", "GSPO", "CISPO"]


@pytest.mark.parametrize(("name", "block"), ROWS)
def test_settings_of_a_paper_are_a_valid_config(name: str, block: str, tmp_path: Path) -> None:
    alg: dict[str, Any] = parse_yaml(block, name)
    config = make_config(tmp_path, alg__id=alg["id"], alg__kl_div=alg["kl_div"], env__n_envs=4)
    config["alg"]["args"] |= alg["args"]
    check_components(parse_config(config, name))
