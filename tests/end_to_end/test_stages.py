"""Commands that other commands start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from runs import make_config, run_folder, train, write_config

SCRIPT = "import sys; from rl4dialog.experiments.own_process import run_command; run_command(sys.argv[1:])"


def test_run_saves_and_stops_when_the_command_that_started_it_is_killed(tmp_path: Path) -> None:
    config = make_config(tmp_path, train_evaluation__n_iters=100_000, train_evaluation__eval_every=100_000)
    place = ["--base_path_to_store_results", str(tmp_path / "runs"), "--project_name", "p", "--experiment_name", "e"]
    command = [sys.executable, "-c", SCRIPT, "train", "--config_path", str(write_config(tmp_path, config)), *place]
    with open(tmp_path / "output.txt", "w") as output:
        parent = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    rollouts = run_folder(tmp_path) / "rollout_info.jsonl"
    wait_for(lambda: rollouts.exists() and rollouts.stat().st_size > 0)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: "Rerun the command to continue" in (tmp_path / "output.txt").read_text())
    assert any((run_folder(tmp_path) / "checkpoints").iterdir())
    done = len(rollouts.read_text().splitlines())
    config["train_evaluation"]["n_iters"] = done + 1
    assert train(tmp_path, config, "--resume") == 0


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within two minutes")
