"""The README's code, configs and commands are what a newcomer types: they work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from runs import make_config, run_folder, train

from rl4dialog.core.config import parse_config
from rl4dialog.core.yaml_loader import parse_yaml
from rl4dialog.training.builders import check_components

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_config_by_example_is_valid() -> None:
    (config,) = [block for block in blocks("yaml") if block.startswith("seed:")]
    check_components(parse_config(parse_yaml(config, "README.md"), "README.md"))


def test_parts_of_ones_own_run(tmp_path: Path) -> None:
    (code,) = blocks("python")
    (tmp_path / "my_parts.py").write_text(code, encoding="utf-8")
    (reward,) = [yaml.safe_load(block) for block in blocks("yaml") if "composite" in block]
    names = [part["id"] for part in reward["reward_fn"]["args"]["rewards"]]
    assert "short_reply" in names
    config = make_config(
        tmp_path,
        imports=["./my_parts.py"],
        datapool={"id": "greetings"},
        reward_fn={"id": "short_reply"},
        train_evaluation__metrics=[{"id": "share_of_questions"}],
    )
    assert train(tmp_path, config) == 0
    assert "style/questions" in (run_folder(tmp_path) / "test_split_metrics.jsonl").read_text(encoding="utf-8")


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"(?:task_configs|scripts|tests|docs)/[\w/.]+\.(?:yml|py|png)", README):
        assert (ROOT / name).is_file(), name


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= targets


def test_tree_has_a_line_for_every_file() -> None:
    tree = README.split("## The tree", 1)[1].split("```")[1]
    listed = re.findall(r"^ +(\w+\.py) ", tree, flags=re.MULTILINE)
    assert sorted(listed) == sorted(p.name for p in (ROOT / "rl4dialog").rglob("*.py") if not p.name.startswith("_"))
    packages = {path.parent.name for path in (ROOT / "rl4dialog").rglob("*/__init__.py")}
    assert packages == set(re.findall(r"(\w+)/", tree.split("scripts/")[0])) - {"rl4dialog"}
