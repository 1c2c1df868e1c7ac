"""A supervised run that is stopped and resumed is the run that was never stopped, bit by bit."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import assert_same_run, lines, make_config, run_folder, train

from rl4dialog import cli
from rl4dialog.training.supervised.trainer import SupervisedTrainer

N_STEPS = 6  # of an epoch


def config_of(tmp_path: Path, model: str = "gpt2", **overrides: Any) -> dict[str, Any]:
    """Three epochs with a checkpoint after each."""
    kind = "seq2seq" if model == "t5" else "causal"
    alg = {
        "id": "supervised",
        "model_type": kind,
        "model_name": f"builtin/tiny-{model}",
        "training_args": {
            "num_train_epochs": 3,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.2,
            "logging_steps": 4,
        },
    }
    settings: dict[str, Any] = {
        "alg": alg,
        "train_evaluation__save_every": 1,
        "train_evaluation__eval_every": 1,
        "train_evaluation__keep_last": 9,
        "train_evaluation__max_eval_samples": 2,
        **overrides,
    }
    return make_config(tmp_path, **settings)


def stop(number: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal once, at the start of a step."""
    training_step, sent = SupervisedTrainer.training_step, []

    def signalled(self: SupervisedTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step and not sent:
            sent.append(step)
            os.kill(os.getpid(), number)
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(SupervisedTrainer, "training_step", signalled)


@pytest.mark.parametrize("step", [3, 7, 10, 12])
def test_x(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step) -> None:
    config = config_of(tmp_path)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    resumed.mkdir()
    assert train(whole, config) == 0
    print(lines(run_folder(whole) / "training_info.jsonl"))
    print(sorted(p.relative_to(whole).as_posix() for p in run_folder(whole).rglob("*")))
    stop(signal.SIGTERM, step, monkeypatch)
    assert train(resumed, config) == cli.EXIT_INTERRUPTED
    print(sorted(p.name for p in (run_folder(resumed) / "checkpoints").iterdir()))
    assert train(resumed, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(resumed))
