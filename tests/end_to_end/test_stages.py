"""Commands that other commands start."""

import os
import signal
import subprocess
import sys
import time

import pytest
from runs import SHORT, make_config, run_folder, train, train_arguments

# Not one of those that tests shrink.
MODEL = {"alg__policy__args__model_name": "builtin/tiny-llama", "tokenizer__model_name": "builtin/tiny-llama"}
SCRIPT = "import sys; from rl4dialog.training.own_process import run_command; run_command(sys.argv[1:])"


@pytest.mark.long
def test_run_saves_and_stops_when_the_command_that_started_it_is_killed(tmp_path):
    config = make_config(
        tmp_path, **{**SHORT, "train_evaluation__n_iters": 100_000, "train_evaluation__eval_every": 100_000, **MODEL}
    )
    output, rollouts = tmp_path / "output.txt", run_folder(tmp_path) / "rollout_info.jsonl"
    with open(output, "w") as file:
        command = [sys.executable, "-c", SCRIPT, *train_arguments(tmp_path, config)]
        parent = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    wait_for(rollouts, "\n")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(output, "Rerun the command to continue")
    assert any((run_folder(tmp_path) / "checkpoints").iterdir())
    config["train_evaluation"]["n_iters"] = len(rollouts.read_text().splitlines()) + 1
    assert train(tmp_path, config, "--resume") == 0


def wait_for(file, words):
    for _ in range(1200):
        if file.is_file() and words in file.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{file} has no {words!r} after two minutes")
