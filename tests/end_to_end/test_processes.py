"""Several processes do what one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import make_config, write_config
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_text_generation.py"
# What accelerate launch says for configs with FSDP and DeepSpeed.
FSDP = {"ACCELERATE_USE_FSDP": "true"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "DS_ACCELERATOR": "cpu"}
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
# All that could differ is decided: nothing is drawn, replies have one length, and a minibatch is all of an iteration.
SAME = {
    "env__n_envs": 4,
    "alg__args__n_steps": 10,
    "alg__args__batch_size": 40,
    "alg__args__n_epochs": 2,
    "alg__kl_div__norm_reward": True,
    "alg__policy__args__generation_kwargs": {"do_sample": False, "min_length": 10, "max_new_tokens": 10},
    "train_evaluation__n_iters": 1,
}


def launch(tmp_path: Path, config: dict[str, Any], n_processes: int, **kwargs: Any) -> subprocess.Popen:
    (tmp_path / f"by_{n_processes}").mkdir(exist_ok=True)
    arguments = [
        *("--config_path", str(write_config(tmp_path / f"by_{n_processes}", config))),
        *("--base_path_to_store_results", str(tmp_path)),
        *("--project_name", "p", "--experiment_name", f"by_{n_processes}"),
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n_processes)]
    command = [sys.executable, *(launcher if n_processes > 1 else []), str(SCRIPT), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain_config(tmp_path: Path, algorithm: str, kind: str) -> dict[str, Any]:
    model = {"causal": "builtin/tiny-gpt2", "seq2seq": "builtin/tiny-t5"}[kind]
    config = make_config(tmp_path, **SAME, alg__id=algorithm)
    config["alg"]["policy"]["args"]["model_name"] = config["tokenizer"]["model_name"] = model
    mask = "maskable_" if algorithm == "nlpo" else ""
    config["alg"]["policy"]["id"] = f"{mask}{kind}_lm_actor_critic_policy"
    if algorithm == "rloo":
        config["alg"]["args"]["n_generations"] = 2
    if algorithm == "ppo" and kind == "causal":
        config["warm_start"] = {"n_epochs": 1, "batch_size": 4}
    return config


@pytest.mark.parametrize(
    ("algorithm", "kind", "variables"),
    [
        ("ppo", "causal", {}),
        ("rloo", "causal", {}),
        ("ppo", "causal", FSDP),
        ("nlpo", "seq2seq", FSDP),
        pytest.param("ppo", "causal", DEEPSPEED, marks=needs_deepspeed),
    ],
)
def test_two_processes_give_the_weights_of_one(
    tmp_path: Path, algorithm: str, kind: str, variables: dict[str, str]
) -> None:
    config = plain_config(tmp_path, algorithm, kind)
    for n in (1, 2):
        process = launch(tmp_path, config, n, env={**os.environ, **(variables if n > 1 else {})})
        output, _ = process.communicate(timeout=150)
        assert process.returncode == 0, output
    one, two = (load_file(tmp_path / "p" / f"by_{n}" / "model" / "model.safetensors") for n in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)
    replies = [(tmp_path / "p" / f"by_{n}" / "epoch_0_test_split_predictions.json").read_text() for n in (1, 2)]
    assert replies[0] == replies[1]
    logged = [lines(tmp_path / "p" / f"by_{n}" / "rollout_info.jsonl") for n in (1, 2)]
    assert len(logged[0]) == len(logged[1]) == 1
    for key in ("rollout/task_reward", "rollout/kl", "rollout/tokens", "rollout/n_episodes", "rollout/values"):
        assert logged[1][0][key] == pytest.approx(logged[0][0][key], abs=1e-6), key
    trained = [lines(tmp_path / "p" / f"by_{n}" / "training_info.jsonl")[0] for n in (1, 2)]
    for key in ("train/loss", "train/grad_norm", "train/approx_kl"):
        assert trained[1][key] == pytest.approx(trained[0][key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("variables", [FSDP, pytest.param(DEEPSPEED, marks=needs_deepspeed)])
def test_sharded_processes_stay_in_step(tmp_path: Path, variables: dict[str, str]) -> None:
    """Replies of all lengths, several minibatches of several parts, and evaluations in between."""
    config = make_config(
        tmp_path,
        env__n_envs=4,
        alg__args={"n_steps": 20, "batch_size": 30, "micro_batch_size": 1, "n_epochs": 2, "learning_rate": 1e-3},
        alg__policy__args__critic="shared",
        train_evaluation__n_iters=3,
    )
    process = launch(tmp_path, config, 2, env={**os.environ, **variables})
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    assert [line["iteration"] for line in lines(tmp_path / "p" / "by_2" / "training_info.jsonl")] == [1, 2, 3]


def test_a_killed_process_ends_the_run(tmp_path: Path) -> None:
    process = launch(tmp_path, make_config(tmp_path, train_evaluation__n_iters=1000), 2)
    progress = tmp_path / "p" / "by_2" / "training_info.jsonl"
    deadline = time.monotonic() + 200
    while not progress.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    children = [pid for pid in _children_of(process.pid) if str(SCRIPT) in _command_of(pid)]
    assert len(children) == 2
    os.kill(children[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert "Signal 9" in output or "lost another process" in output


def test_what_fsdp_cannot_do_is_refused(tmp_path: Path) -> None:
    process = launch(tmp_path, make_config(tmp_path, lora={"r": 2}), 2, env={**os.environ, **FSDP})
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "lora does not go with FSDP" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env__n_envs": 3}, "env.n_envs is 3, which 2 processes cannot share evenly"),
        ({"alg__id": "trpo", "alg__args": {"n_steps": 16}}, "alg.id: trpo trains in one process"),
    ],
)
def test_what_processes_cannot_share_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    process = launch(tmp_path, make_config(tmp_path, **changes), 2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert message in output


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
