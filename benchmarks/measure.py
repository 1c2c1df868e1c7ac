"""Contestants take turns, each in a process of its own, so that the memory of each can be told."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.contestants import PHASES, Contestant, Rl4dialog, Setting, Timing, VanillaSB3
from benchmarks.plain_loop import PlainLoop
from benchmarks.trl_trainer import TRL
from benchmarks.workloads import Workload
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.process_memory import keep_few_kernels, keep_freed_memory, resident_mib
from rl4dialog.core.registry import import_object
from rl4dialog.training.memory import peak_mib

OURS, PLAIN, TOKEN_BY_TOKEN, TRL_TRAINER = "rl4dialog", "plain loop", "stable-baselines3", "trl"
_CONTESTANTS: dict[str, Callable[[Setting, Workload], Contestant]] = {
    OURS: Rl4dialog,
    PLAIN: PlainLoop,
    TOKEN_BY_TOKEN: VanillaSB3,
    TRL_TRAINER: TRL,
}


class BenchmarkError(RL4DialogError):
    """A contestant failed."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # with the lines of the contestant's traceback


@dataclass
class Result:
    """What one contestant needed."""

    name: str
    seconds: list[float]
    phases: dict[str, float]
    n_tokens: list[int]
    peak_mib: float

    @property
    def rates(self) -> list[float]:
        """Agent tokens per second of each iteration."""
        return [n / seconds for n, seconds in zip(self.n_tokens, self.seconds, strict=True)]

    def speed_relative_to(self, other: Result) -> float:
        """How many times faster: the median over the turns, each of which compares neighbours in time."""
        return float(np.median(np.array(self.rates) / np.array(other.rates)))


def measure(
    setting: Setting, workload: Workload, names: list[str], repeats: int, cpu_time: bool = False
) -> list[Result]:
    """Let contestants do iterations in turns, after one each to warm up; on a GPU, which may not hold all, alone."""
    if setting.device != "cpu" and len(names) > 1:
        return [result for name in names for result in measure(setting, workload, [name], repeats, cpu_time)]
    context = multiprocessing.get_context("spawn")
    children = {}
    for name in names:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, name, setting, workload, cpu_time))
        process.start()
        theirs.close()
        children[name] = (process, ours)
    timings: dict[str, list[Timing]] = {name: [] for name in names}
    peaks: dict[str, float] = {}
    try:
        for name, (_, pipe) in children.items():
            _answer(name, pipe)
        for repeat in range(repeats + 1):
            for name, (_, pipe) in children.items():
                pipe.send("next")
                timing, peaks[name] = _answer(name, pipe)
                if repeat:
                    timings[name].append(timing)
    finally:
        for process, pipe in children.values():
            pipe.close()
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
    results = []
    for name, own in timings.items():
        known = [phase for phase in PHASES if phase in own[0].phases]
        phases = {phase: statistics.median(timing.phases[phase] for timing in own) for phase in known}
        totals, n_tokens = [timing.total for timing in own], [timing.n_tokens for timing in own]
        results.append(Result(name, totals, phases, n_tokens, peaks[name]))
    return results


def _answer(name: str, pipe: Connection) -> Any:
    try:
        good, answer = pipe.recv()
    except (EOFError, ConnectionError) as error:
        raise BenchmarkError(f"the process of {name!r} ended; its own error, if it had one, stands above") from error
    if not good:
        raise BenchmarkError(f"{name!r} failed:\n{answer}")
    return answer


def _serve(pipe: Connection, name: str, setting: Setting, workload: Workload, cpu_time: bool) -> None:
    """One contestant's process: an iteration for every message, until the pipe is closed."""
    keep_freed_memory()
    keep_few_kernels()
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.disable_progress_bar()
    try:
        on_log = setting.algorithm in ("ilql", "bc")
        contestants = import_object("benchmarks.on_log:CONTESTANTS") if on_log else _CONTESTANTS
        contestant = contestants[name](setting, workload)
        pipe.send((True, None))
        while True:
            try:
                pipe.recv()
            except EOFError:
                break
            pipe.send((True, (timed_iteration(contestant, cpu_time), _peak_mib(setting.device))))
        contestant.close()
    except Exception:
        pipe.send((False, traceback.format_exc()))


def timed_iteration(contestant: Contestant, cpu_time: bool) -> Timing:
    """One iteration, in seconds as the contestant measures them or, with ``cpu_time``, of the CPU."""
    started = time.process_time()
    timing = contestant.iterate()
    return replace(timing, total=time.process_time() - started) if cpu_time else timing


def _peak_mib(device: str) -> float:
    """Peak memory of this process and, in main memory, what its children hold now."""
    own = peak_mib(torch.device(device))
    if device.startswith("cuda"):
        return own
    children = Path("/proc/self/task/").glob("*/children")
    return own + sum(resident_mib(pid) for path in children for pid in path.read_text().split())
