"""Which contestants meet on which workload, and what is printed of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import trl_trainer
from benchmarks.contestants import PHASES, Precision, Setting
from benchmarks.measure import OURS, PLAIN, TOKEN_BY_TOKEN, TRL_TRAINER, Result, measure
from benchmarks.workloads import WORKLOADS, Workload

WIDTH = 130
_REPLY_LENGTHS, _N_EPISODES = (16, 32, 64, 128, 256), (32, 64, 128, 256, 512)


def combinations(
    workloads: Iterable[str],
    kinds: Sequence[str],
    critics: Sequence[str],
    precisions: Sequence[Precision],
    lora: bool = False,
    device: str = "cpu",
) -> Iterator[Setting]:
    """Every combination: PPO where there is a critic, and RLOO and GRPO where there is none."""
    for workload, kind, precision, critic in itertools.product(workloads, kinds, precisions, critics):
        for algorithm in ("ppo",) if critic != "none" else ("rloo", "grpo"):
            yield Setting(workload, kind, critic, algorithm, device, lora, precision)


def compare_all(
    workloads: Mapping[str, Workload],
    settings: Iterable[Setting],
    repeats: int,
    token_by_token: bool = False,
    output: Path | None = None,
) -> None:
    """Measure settings, and print a table for each."""
    console = Console(width=WIDTH)
    console.print(f"{torch.get_num_threads()} threads, medians of {repeats} iterations, each contestant in its turn")
    measured = {}
    for setting in settings:
        workload = workloads[setting.workload]
        names = _contestants(setting, workload, token_by_token)
        if names == [OURS]:  # GRPO without TRL
            continue
        results = measure(setting, workload, names, repeats)
        console.print(table_of(str(setting), results))
        measured[str(setting)] = [dataclasses.asdict(result) for result in results]
        if output is not None:
            output.write_text(json.dumps(measured, indent=2) + "\n")


def _contestants(setting: Setting, workload: Workload, token_by_token: bool) -> list[str]:
    if setting.critic != "none":
        # stable-baselines3's step knows neither adapters nor autocast.
        plain_policy = not setting.lora and setting.precision == "fp32"
        return [OURS, PLAIN, *([TOKEN_BY_TOKEN] if token_by_token and plain_policy else [])]
    # TRL samples replies of one length, and has decoder-only models only.
    fits_trl = setting.kind == "causal" and len(workload.reply_lengths) == 1
    with_trl = [TRL_TRAINER] if fits_trl and trl_trainer.is_installed() else []
    return [OURS, *([PLAIN] if setting.algorithm == "rloo" else []), *with_trl]


def table_of(title: str, results: list[Result], seconds: str = "seconds") -> Table:
    """Times, tokens per second, memory, and the speed beside the plain loop's or the last one's."""
    table = Table("", seconds, "lowest to highest", *PHASES, "tokens/s", "peak MiB", "speed", title=title)
    yardstick = next((result for result in results if result.name == PLAIN), results[-1])
    for result in results:
        table.add_row(
            result.name,
            f"{np.median(result.seconds):.2f}",
            f"{min(result.seconds):.2f} to {max(result.seconds):.2f}",
            *(f"{result.phases[phase]:.2f}" if phase in result.phases else "" for phase in PHASES),
            f"{np.median(result.rates):.0f}",
            f"{result.peak_mib:.0f}",
            f"{result.speed_relative_to(yardstick):.2f} x",
        )
    return table


def compare_sizes(kinds: Sequence[str], repeats: int, device: str = "cpu") -> None:
    """Print how the time of an iteration grows with the length of replies and with the number of episodes.

    The exponent k of time ~ size^k is fitted by least squares on the logarithms; 1 is linear.
    """
    console = Console(width=WIDTH)
    for kind in kinds:
        base = dataclasses.replace(WORKLOADS["tiny"], n_epochs=1)
        by_length = {n: dataclasses.replace(base, reply_lengths=(n,), n_episodes=32) for n in _REPLY_LENGTHS}
        by_number = {n: dataclasses.replace(base, n_episodes=n) for n in _N_EPISODES}
        for what, workloads in (("reply length", by_length), ("episodes", by_number)):
            seconds = []
            for workload in workloads.values():
                (result,) = measure(Setting("tiny", kind, device=device), workload, [OURS], repeats)
                seconds.append(float(np.median(result.seconds)))
            table = Table(what, "seconds", title=f"{kind}: time against {what}")
            for size, value in zip(workloads, seconds, strict=True):
                table.add_row(str(size), f"{value:.2f}")
            console.print(table)
            exponent = np.polyfit(np.log(list(workloads)), np.log(seconds), 1)[0]
            console.print(f"time grows with {what} to the power of {exponent:.2f}")
