"""Contestants that learn from a log, and the speed of guided decoding (``rl4dialog.features.offline``)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from rich.console import Console

from benchmarks import agile_ilql, original_ilql
from benchmarks.agile_ilql import AgileILQL
from benchmarks.compare import WIDTH, table_of
from benchmarks.contestants import Contestant, Setting
from benchmarks.measure import OURS, PLAIN, measure
from benchmarks.offline import ALGORITHMS, BarePasses, Decoding, OfflineLoop, OfflineRl4dialog, with_room
from benchmarks.original_ilql import OriginalILQL
from benchmarks.workloads import Workload

ALL_VALUES, PASSES, ORIGINAL, AGILE = "plain loop, all values", "bare passes", "original ILQL", "AgileRL"
GUIDED, FILTERED, UNGUIDED = "guided", "guided, top 20", "unguided"
CONTESTANTS: dict[str, Callable[[Setting, Workload], Contestant]] = {
    OURS: OfflineRl4dialog,
    PLAIN: OfflineLoop,
    ALL_VALUES: partial(OfflineLoop, all_values=True),
    PASSES: BarePasses,
    ORIGINAL: OriginalILQL,
    AGILE: AgileILQL,
    GUIDED: partial(Decoding, beta=4.0),
    FILTERED: partial(Decoding, beta=4.0, top_k=20),
    UNGUIDED: partial(Decoding, beta=0.0),
}


def compare_offline(
    workloads: Mapping[str, Workload],
    critics: Sequence[str],
    repeats: int,
    device: str = "cpu",
    contestants: Sequence[str] | None = None,
    cpu_time: bool = False,
) -> None:
    """Print the speed of training on a log beside a plain loop, and of guided decoding beside the language model.

    The code of ILQL's authors and AgileRL's take part if :data:`~benchmarks.original_ilql.SOURCE` and
    :data:`~benchmarks.agile_ilql.FOLDER` name their folders.
    """
    console = Console(width=WIDTH)
    console.print(f"{torch.get_num_threads()} threads, medians of {repeats} iterations, each contestant in its turn")
    for name, critic in itertools.product(workloads, critics):
        setting = Setting(name, critic=critic, algorithm=ALGORITHMS[critic == "none"], device=device)
        workload = workloads[name]
        matches = [("training", with_room(workload), _learners(critic))]
        if critic != "none":
            matches.append(("decoding", workload, [GUIDED, FILTERED, UNGUIDED]))
        for title, sized, names in matches:
            if chosen := [each for each in names if contestants is None or each in contestants]:
                found = measure(setting, sized, chosen, repeats, cpu_time)
                console.print(table_of(f"{setting}, {title}", found, "CPU seconds" if cpu_time else "seconds"))


def _learners(critic: str) -> list[str]:
    if critic == "none":
        return [OURS, PLAIN]
    original = [ORIGINAL] if original_ilql.SOURCE in os.environ else []
    agile = [AGILE] if critic == "separate" and agile_ilql.FOLDER in os.environ else []
    return [OURS, PLAIN, ALL_VALUES, PASSES, *original, *agile]
