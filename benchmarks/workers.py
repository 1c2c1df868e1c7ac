"""How long environment workers take to start, what memory they need, and what a step of all environments costs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np
from rich.console import Console
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.soak import own_mib
from benchmarks.task import TableEndOfTurn, share_of_letters
from benchmarks.workloads import WORKLOADS, build_prompts
from rl4dialog.envs.vectorize import BlockVecEnv, make_vec_env
from rl4dialog.scores.parts import as_parts


def compare_workers(n_envs: int = 64, n_workers: int = 8, n_samples: int = 1000, repeats: int = 30) -> None:
    """Print the start of the workers beside one import of stable-baselines3, and a step beside one without workers."""
    workload = WORKLOADS["tiny"]
    tokenizer, samples = build_prompts(workload)
    env_kwargs = {
        "end_of_turn": TableEndOfTurn(tokenizer, workload.reply_lengths),
        "samples": [samples[i % len(samples)] for i in range(n_samples)],
        "reward_parts": as_parts(share_of_letters),
        "max_prompt_length": workload.max_prompt_length,
        "max_episode_length": workload.max_reply_length,
        "vocab_size": len(tokenizer),
    }
    console = Console()
    imported = statistics.median(_seconds_of_import("stable_baselines3") for _ in range(3))
    started = time.perf_counter()
    workers = make_vec_env(env_kwargs, n_envs, "blocks", n_workers)
    up = time.perf_counter() - started
    assert isinstance(workers, BlockVecEnv)
    console.print(f"start of {n_workers} workers: {up:.2f} s; one import of stable-baselines3: {imported:.2f} s")
    for name, env in (("in workers", workers), ("in this process", make_vec_env(env_kwargs, n_envs, "dummy"))):
        env.seed(0)
        env.reset()
        milliseconds = _milliseconds_of_step(env, workload.max_reply_length, repeats)
        console.print(f"a reply in each of {n_envs} environments {name}: {milliseconds:.1f} ms")
    own = [own_mib(process.pid) for process in workers.processes]
    console.print(f"memory that a worker shares with no other process: {min(own):.0f} to {max(own):.0f} MiB")
    workers.close()


def _seconds_of_import(module: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - started


def _milliseconds_of_step(env: VecEnv, reply_length: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(repeats + 1):
        actions = rng.integers(300, 900, (env.num_envs, reply_length))
        started = time.perf_counter()
        env.step(actions)
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds[1:])
