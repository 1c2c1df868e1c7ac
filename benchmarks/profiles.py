"""What the seconds of an iteration are spent on, ours beside the plain loop's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.contestants import Contestant, Rl4dialog, Setting
from benchmarks.measure import OURS, PLAIN
from benchmarks.plain_loop import PlainLoop
from benchmarks.workloads import Workload

_KINDS_OF_OPERATORS = {
    "matrix products": ("mm",),
    "attention": ("scaled_dot_product",),
    "normalization, activation": ("layer_norm", "gelu", "relu", "rsqrt", "mean", "pow"),
    "softmax, sampling": ("softmax", "multinomial", "exponential", "sort", "topk", "argmax"),
    "optimizer": ("_fused_adam", "linalg_vector_norm", "_foreach"),
    "copies, indexing": ("copy_", "cat", "index", "gather", "scatter", "embedding", "fill_", "zero_", "nonzero"),
}
_OTHERS = "other operators"


def compare_profiles(workloads: Mapping[str, Workload], settings: Iterable[Setting]) -> None:
    """Print, for every setting, the seconds of an iteration by kind of operator.

    An operator's seconds are its own, without those of operators that it calls. What is left is spent between
    operators: by Python, tokenizers, environments, rewards, and the profiler itself.
    """
    console = Console(width=100)
    for setting in settings:
        if setting.algorithm == "grpo":
            continue
        workload = workloads[setting.workload]
        contestants: dict[str, Contestant] = {OURS: Rl4dialog(setting, workload), PLAIN: PlainLoop(setting, workload)}
        found = [_seconds_by_kind(contestant) for contestant in contestants.values()]
        table = Table("seconds of an iteration", *contestants, title=str(setting))
        for what in found[0]:
            table.add_row(what, *(f"{seconds[what]:.2f}" for seconds in found))
        console.print(table)
        for contestant in contestants.values():
            contestant.close()


def _seconds_by_kind(contestant: Contestant) -> dict[str, float]:
    contestant.iterate()
    unwatched = float(np.median([contestant.iterate().total for _ in range(3)]))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        watched = contestant.iterate().total
    seconds = dict.fromkeys((*_KINDS_OF_OPERATORS, _OTHERS), 0.0)
    for event in profiler.key_averages():
        kinds = (kind for kind, parts in _KINDS_OF_OPERATORS.items() if any(part in event.key for part in parts))
        seconds[next(kinds, _OTHERS)] += event.self_cpu_time_total / 1e6
    between = watched - sum(seconds.values())
    return {**seconds, "between operators": between, "all": watched, "all, without the profiler": unwatched}
