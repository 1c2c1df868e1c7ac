"""PPO with a trained reward model: of replies, and of whole conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reward_models
from runs import lines, make_config, run_folder, train

PARTNER = {"partner": {"id": "scripted", "args": {"replies": ["oh .", "i see ."]}}, "max_turns": 2}


@pytest.mark.parametrize(
    ("unit", "reward", "env"),
    [
        ("reply", {"id": "learned_reward"}, {}),
        ("dialogue", {"id": "conversation_reward_model"}, PARTNER),
        ("dialogue", {"id": "conversation_reward_model", "args": {"shaping": "every_turn"}}, PARTNER),
    ],
)
def test_ppo_runs_on_the_score_of_a_reward_model(
    tmp_path: Path, unit: str, reward: dict[str, Any], env: dict[str, Any]
) -> None:
    model = tmp_path / "rater"
    reward_models.save_reward_model(model, unit)
    config = make_config(tmp_path, reward_fn={"id": reward["id"], "args": {"model_name": str(model)}})
    config["reward_fn"]["args"].update(reward.get("args", {}))
    config["env"]["args"].update(env)
    config["train_evaluation"]["n_iters"] = 1
    config["train_evaluation"]["metrics"] = [{"id": "length"}]
    assert train(tmp_path, config) == 0
    (info,) = lines(run_folder(tmp_path) / "rollout_info.jsonl")
    # A model with random weights and its small scores: neither zero nor large.
    assert 0 < abs(info[f"rollout/reward/{reward['id']}"]) < 5
