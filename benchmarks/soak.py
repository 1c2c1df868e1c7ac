"""Whole small runs for a long time and under faults, in figures: memory, rewards that fail."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from benchmarks.task import FailingReward
from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import RewardError
from rl4dialog.core.process_memory import resident_mib
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.policy_trainee import OnPolicyTrainee
from rl4dialog.training.trainer import Trainer

REWARD_ID = "failing_reward_of_the_soak_test"
N_WORKERS = 2


def own_mib(pid: int) -> float:
    """Memory of a process that is not shared with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later; memory in use is ``hblkhd`` plus ``uordblks``."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]
    HBLKHD, UORDBLKS = 4, 7


def heap_mib() -> float | None:
    """Memory allocated by malloc and not freed, in the main arena of this process; ``None`` if unavailable.

    Unlike resident memory, it does not grow with fragmentation of the heap.
    """
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo
    counts = mallinfo().counts
    return float(counts[_MallInfo.HBLKHD] + counts[_MallInfo.UORDBLKS]) / 2**20


def run_config(n_iters: int, reward: Mapping[str, Any] = {}, n_steps: int = 20) -> dict[str, Any]:
    """A run of a tiny model, 4 environments in 2 workers, with an evaluation and a checkpoint every 20 iterations."""
    policy, every = {"model_name": "builtin/tiny-gpt2", "critic": "shared"}, {"eval_every": 20, "save_every": 20}
    return {
        "tokenizer": {"model_name": "builtin/tiny-gpt2"},
        "datapool": {"id": "small_talk", "args": {"n_train": 100, "n_val": 10, "n_test": 10}},
        "reward_fn": {"id": REWARD_ID, "args": {"share": 0.0}, **reward},
        "env": {"n_envs": 4, "n_workers": N_WORKERS, "args": {"max_prompt_length": 48, "max_episode_length": 10}},
        "alg": {
            "id": "ppo",
            "args": {"n_steps": n_steps, "batch_size": 2 * n_steps, "n_epochs": 2, "learning_rate": 1e-3},
            "kl_div": {"coeff": 0.02},
            "policy": {"id": "causal_lm_actor_critic_policy", "args": policy},
        },
        "train_evaluation": {"n_iters": n_iters, **every, "max_eval_samples": 8, "metrics": [{"id": "rouge"}]},
    }


@dataclasses.dataclass
class Run:
    """What a run leaves to look at: its lines, without what was measured of the machine, and its weights."""

    rollouts: list[dict[str, Any]]
    weights: dict[str, Any]
    seconds: float

    def equals(self, other: Run) -> bool:
        """Whether another run collected the same and ended with the same weights, bit by bit."""
        return self.rollouts == other.rollouts and all(
            bool((weight == other.weights[name]).all()) for name, weight in self.weights.items()
        )


class _WatchedTracker(Tracker):
    """Keeps what is logged, and calls back after every iteration."""

    after_iteration: Callable[[], None] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rollouts: list[dict[str, Any]] = []

    def log_rollout_infos(self, rollout_info: Mapping[str, Any]) -> None:
        super().log_rollout_infos(rollout_info)
        self.rollouts.append({key: value for key, value in rollout_info.items() if not key.startswith("time/")})

    def log_training_infos(self, training_info: Mapping[str, Any]) -> None:
        super().log_training_infos(training_info)
        if self.after_iteration is not None:
            self.after_iteration()


def run(config: dict[str, Any], watch: Callable[[OnPolicyTrainee], Callable[[], None]] | None = None) -> Run:
    """Train as the command line does, in a folder that is removed."""
    RewardFunctionRegistry.add(REWARD_ID, FailingReward)
    started, console = time.perf_counter(), io.StringIO()
    quiet = contextlib.redirect_stdout(console), contextlib.redirect_stderr(console)
    with tempfile.TemporaryDirectory() as base, quiet[0], quiet[1]:
        checked = parse_config(config, "the soak test's config")
        tracker = _WatchedTracker(RunFolder(base, "soak", "run"), checked.model_dump(mode="json"), "soak", "run")
        try:
            trainer = Trainer(checked, tracker)
            assert isinstance(trainer.trainee, OnPolicyTrainee)
            tracker.after_iteration = watch(trainer.trainee) if watch is not None else None
            trainer.train_and_eval()
        finally:
            tracker.close()
        weights = load_file(tracker.run_folder.path("model") / "model.safetensors")
    return Run(tracker.rollouts, weights, time.perf_counter() - started)


def watch_memory(n_iters: int, warm_up: int | None = None) -> dict[str, list[float]]:
    """Print what the processes hold after each iteration, and what an iteration adds to it."""
    held: dict[str, list[float]] = {}

    def watch(trainee: OnPolicyTrainee) -> Callable[[], None]:
        def measure() -> None:
            pids = [process.pid for process in trainee.algorithm.env.processes]
            now = {"main": resident_mib(), "main, heap in use": heap_mib() or math.nan}
            now |= {f"worker {i}": own_mib(pid) for i, pid in enumerate(pids)}
            for name, mib in now.items():
                held.setdefault(name, []).append(mib)

        return measure

    run(run_config(n_iters), watch)
    warm_up = n_iters // 4 if warm_up is None else warm_up
    for name, series in held.items():
        slope = kib_per_iteration(series[warm_up:])
        print(
            f"{name}: {series[0]:.1f} MiB after iteration 1, {series[warm_up]:.1f} after {warm_up + 1}, "
            f"{series[-1]:.1f} after {len(series)}; {slope:+.1f} KiB per iteration after {warm_up}"
        )
    return held


def can_watch() -> bool:
    """Whether the system tells what other processes hold."""
    return Path("/proc/self/smaps_rollup").exists()


def kib_per_iteration(mib: Sequence[float]) -> float:
    """Slope of the line that fits best."""
    return float(np.polyfit(np.arange(len(mib)), np.asarray(mib), 1)[0]) * 1024


def fail_rewards(n_iters: int) -> list[Run]:
    """Print how runs go on whose reward fails for 0, 1 and 50 % of the replies, and what ends one that must not."""
    runs = []
    for share, failure in ((0.0, "nan"), (0.01, "raise"), (0.5, "nan")):
        args = {"share": share, "failure": failure}
        done = run(run_config(n_iters, {"args": args, "on_error": "mask"}, n_steps=60))
        n_masked = sum(line["rollout/masked_rewards"] for line in done.rollouts)
        n_episodes = n_masked + sum(line["rollout/n_episodes"] for line in done.rollouts)
        rewards = [line["rollout/task_reward"] for line in done.rollouts]
        print(
            f"{share:.0%} fail ({failure}): {n_masked} of {n_episodes} episodes left out; task reward of the first 5 "
            f"iterations {statistics.mean(rewards[:5]):.3f}, of the last 5 {statistics.mean(rewards[-5:]):.3f}"
        )
        runs.append(done)
    try:
        run(run_config(n_iters, {"args": {"share": 0.5, "failure": "raise"}}))
    except RewardError as error:
        print(f"on_error: raise ends the run: {error}")
    return runs
