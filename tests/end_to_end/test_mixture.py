"""Runs on several datapools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reward_models
from feedback_files import mixed_feedback, write_feedback
from runs import lines, make_config, run_folder, train

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components

SMALL_TALK = {"id": "small_talk", "share": 3, "args": {"context_size": 1, "n_train": 4, "n_val": 2, "n_test": 2}}
RATED = {"id": "rated_dialogues", "share": 1, "args": {"dataset": "small_talk", "unit": "reply"}}


def mixture(*pools: dict[str, Any]) -> dict[str, Any]:
    return {"id": "mixture", "args": {"pools": list(pools)}}


def test_ppo_with_a_warm_start_runs_on_corrections_and_old_data(tmp_path: Path) -> None:
    path = write_feedback(tmp_path / "feedback.jsonl", mixed_feedback())
    args = {"path": str(path), "use": "corrections", "context_size": 1}
    config = make_config(tmp_path, datapool=mixture({"id": "feedback", "share": 1, "args": args}, SMALL_TALK))
    config["warm_start"] = {"n_epochs": 1}
    config["train_evaluation"]["n_iters"] = 1
    assert train(tmp_path, config) == 0
    assert len(lines(run_folder(tmp_path) / "rollout_info.jsonl")) == 1


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([{**SMALL_TALK, "args": {"contxt_size": 1}}], r"pools\[0\].args.contxt_size: .*did you mean 'context_size'"),
        ([SMALL_TALK, {**SMALL_TALK, "args": {"split": "val"}}], r"pools\[1\].args.split: every run reads"),
        ([SMALL_TALK, RATED], r"pools\[1\].id: rated_dialogues has no prompts"),
        ([{"id": "task_dialogues", "share": 1}], r"pools\[0\].id: task_dialogues needs a task"),
        ([{"id": "smal_talk", "share": 1}], "unknown datapool 'smal_talk'; did you mean 'small_talk'"),
    ],
)
def test_wrong_entries_are_found_before_anything_loads(
    tmp_path: Path, pools: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_components(parse_config(make_config(tmp_path, datapool=mixture(*pools)), "c.yml"))


def test_reward_model_needs_judgements_in_every_part() -> None:
    check_components(parse_config(reward_models.make_config(datapool=mixture(RATED)), "c.yml"))
    with pytest.raises(ConfigError, match=r"pools\[1\].id: small_talk has no judgements"):
        check_components(parse_config(reward_models.make_config(datapool=mixture(RATED, SMALL_TALK)), "c.yml"))
