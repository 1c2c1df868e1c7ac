"""When an iteration's seconds begin and end, and its phases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import Logger

from rl4dialog.training.callbacks import tracking as module
from rl4dialog.training.on_policy.trainee import rates_and_shown


class Records:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.training: list[dict[str, Any]] = []

    def log_rollout_infos(self, info: dict[str, Any]) -> None: ...

    def log_training_infos(self, info: dict[str, Any]) -> None:
        self.training.append(info)

    def show(self) -> None: ...


def test_what_other_callbacks_take_between_iterations_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    tracker: Any = Records()
    phases: list[str] = []
    progress: Any = SimpleNamespace(
        advance=lambda **_: phases.append("advance"), enter=lambda phase="": phases.append(phase)
    )
    tracking = module.TrackingCallback(tracker, progress, rates_and_shown)
    model: Any = SimpleNamespace(
        logger=Logger(None, []), ep_info_buffer=[], iteration=0, device=torch.device("cpu"), get_env=lambda: None
    )
    for callback in (tracking, tracking.last):
        callback.init_callback(model)
    for _ in range(2):
        tracking.on_rollout_start()
        now += 100.0  # an evaluation
        tracking.last.on_rollout_start()
        now += 3.0
        for name, value in (("tokens", 40.0), ("task_reward", 0.0), ("kl", 0.0)):
            model.logger.record(f"rollout/{name}", value)
        model.iteration += 1
        tracking.on_rollout_end()
        tracking.last.on_rollout_end()
        now += 1.0
    tracking.on_training_end()
    assert [info["time/tokens_per_s"] for info in tracker.training] == [10.0, 10.0]
    assert [info["time/update_s"] for info in tracker.training] == [1.0, 1.0]
    assert phases == ["rollout", "update", "", "advance"] * 2
