"""What a log of many conversations costs: memory and time of its first and second start, and of training.

The log is generated: games of Wordle by a scripted player. Every start is a process of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table
from stable_baselines3.common.callbacks import CallbackList

from rl4dialog.core.config import parse_config
from rl4dialog.core.process_memory import peak_resident_mib
from rl4dialog.features.offline.building import OfflineTrainee
from rl4dialog.features.offline.config import OfflineConfig

SIZES = (100_000, 1_000_000)
N_ITERS, N_STEPS, BATCH_SIZE, N_READ = 2, 16_384, 2048, 500


@dataclass
class Start:
    """Seconds and peak memory of a process until training can begin, after it, and after many more minibatches."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    training_mib: float
    reading_mib: float


def run_config(n_games: int) -> OfflineConfig:
    """ILQL on games of a mixed player, with a tiny model."""
    games = {"n_train": n_games, "n_val": 50, "n_test": 50, "word_list": 40, "max_samples": 10_000}
    lengths = {"max_prompt_length": 80, "max_episode_length": 6}
    policy = {"model_name": "builtin/tiny-gpt2", "critic": "shared", "target": "heads"}
    config = {
        "seed": 0,
        "tokenizer": {"model_name": "builtin/characters"},
        "datapool": {"id": "wordle", "args": games},
        "reward_fn": {"id": "partner"},
        "env": {"args": {**lengths, "max_turns": 6, "partner": {"id": "wordle"}}},
        "alg": {
            "id": "ilql",
            "args": {"n_steps": N_STEPS, "batch_size": BATCH_SIZE, "gamma": 1.0, "device": "cpu"},
            "policy": {"id": "value_guided_causal_lm_policy", "args": policy},
        },
        "train_evaluation": {"n_iters": N_ITERS},
    }
    checked = parse_config(config, "the benchmark's config")
    assert isinstance(checked, OfflineConfig)
    return checked


def compare_log_sizes(sizes: Sequence[int] = SIZES) -> None:
    """Print, for each size of the log, what the first and the second start need."""
    console = Console(width=100)
    for size in sizes:
        table = Table("start", "seconds", "CPU seconds", "peak MiB", "after training", "after reading")
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict("os.environ", RL4DIALOG_CACHE=cache):
            for name in ("first", "second"):
                seconds, cpu_seconds, *peaks = astuple(measured_start(size))
                table.add_row(name, f"{seconds:.1f}", f"{cpu_seconds:.1f}", *(f"{each:.0f}" for each in peaks))
        table.title = f"{size:,} games"
        console.print(table)


def measured_start(n_games: int) -> Start:
    """Measure a start in a new process, with the cache of this one."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    started = time.time()
    process = context.Process(target=serve, args=(theirs, n_games, started))
    process.start()
    theirs.close()
    found: Any = ours.recv()
    process.join()
    assert isinstance(found, Start)
    return found


def serve(pipe: Connection, n_games: int, started: float) -> None:
    """Start, train, read, and send the :class:`Start`."""
    trainee = OfflineTrainee(run_config(n_games), None)
    seconds, cpu_seconds, peak = time.time() - started, time.process_time(), peak_resident_mib()
    algorithm = trainee.algorithm
    algorithm.learn(N_ITERS * algorithm.timesteps_per_iteration, CallbackList([]))
    training = peak_resident_mib()
    for _ in range(N_READ):
        algorithm.log.replies(algorithm.sampler.next())
    pipe.send(Start(seconds, cpu_seconds, peak, training, peak_resident_mib()))
