"""Killing a run again and again, and letting it go on: what comes out must be what comes out without."""

from __future__ import annotations

import multiprocessing
import random
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import yaml

from benchmarks.soak import run_config
from rl4dialog.features.experiments.identity import Finding, compare_runs
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER

_PRELOADED = ["rl4dialog.training.trainer", "rl4dialog.algorithms.on_policy.ppo", "rl4dialog.policies.causal"]
_POLL_S = 0.002
_START_S = 3.0  # about what a process needs before its first iteration


@dataclass
class Kill:
    """One kill -9."""

    after_s: float
    while_saving: bool


def run_with_kills(
    arguments: Sequence[str], run_path: Path, n_kills: int, longest_s: float, seed: int = 0
) -> list[Kill]:
    """Start ``rl4dialog train ... --resume auto``, kill it, and so on; then let it come to its end.

    Every second kill waits for a checkpoint that is being written; the others come at random moments.
    """
    rng = random.Random(seed)
    kills: list[Kill] = []
    for number in range(n_kills):
        started, process = time.monotonic(), _start(arguments)
        wanted = rng.uniform(0, longest_s)
        while process.is_alive() and time.monotonic() - started < (longest_s if number % 2 else wanted):
            if number % 2 and _is_saving(run_path):
                time.sleep(rng.uniform(0, 0.02))
                break
            time.sleep(_POLL_S)
        if not process.is_alive():
            _check(process)
            return kills
        process.kill()
        process.join()
        kills.append(Kill(time.monotonic() - started, _is_saving(run_path)))
    last = _start(arguments)
    last.join()
    _check(last)
    return kills


def kill_runs(n_kills: int) -> list[Finding]:
    """Print what becomes of a run that is killed and resumed, beside the same run left alone."""
    config = run_config(2 * n_kills, reward={"id": "rouge", "args": {"rouge_type": "rouge1"}})
    config["train_evaluation"]["save_every"] = 1
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "config.yml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        shared = ["--config_path", str(path), "--base_path_to_store_results", base, "--project_name", "kills"]
        alone, killed = (Path(base) / "kills" / name for name in ("alone", "killed"))
        started = time.monotonic()
        run_with_kills([*shared, "--experiment_name", alone.name], alone, 0, 0.0)
        seconds = time.monotonic() - started
        longest = max(2.0, 3 * seconds / 2 / n_kills + _START_S)
        kills = run_with_kills([*shared, "--experiment_name", killed.name], killed, n_kills, longest)
        findings = compare_runs(alone, killed)
    different = [f"{finding.file}: {finding.where}" for finding in findings if finding.where is not None]
    n_while_saving = sum(kill.while_saving for kill in kills)
    print(
        f"{2 * n_kills} iterations, killed {len(kills)} times by SIGKILL, {n_while_saving} of them while a checkpoint "
        f"was being written, and resumed: "
        + ("; ".join(different) or f"all {len(findings)} files compared are identical to those of the run left alone")
    )
    return findings


def _start(arguments: Sequence[str]) -> ForkServerProcess:
    """The command in a process of its own, forked from one that has imported what takes long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_train, args=(list(arguments),))
    process.start()
    return process


def _train(arguments: list[str]) -> None:
    sys.argv = ["rl4dialog", "train", *arguments, "--resume", "auto"]
    runpy.run_module("rl4dialog.cli", run_name="__main__")


def _is_saving(run_path: Path) -> bool:
    return any((run_path / CHECKPOINTS_FOLDER).glob(".iteration_*.tmp"))


def _check(process: ForkServerProcess) -> None:
    if process.exitcode != 0:
        raise RuntimeError(f"the run ended with exit code {process.exitcode}")
