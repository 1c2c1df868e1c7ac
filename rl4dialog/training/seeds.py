"""Trains one config with several seeds, one run after another, and summarizes the results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from rl4dialog.core.config import load_config
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.files import write_json
from rl4dialog.functional.statistics import Interval
from rl4dialog.runs.report.metrics import mean_estimate
from rl4dialog.runs.run_folder import is_complete, read_result
from rl4dialog.runs.summary import format_interval, format_number, is_headline, number_table
from rl4dialog.training.own_process import RESUMED, Command, run_all, say_failed


def train_with_seeds(
    config_path: str, overrides: Sequence[str], variant: int, seeds: Sequence[int], argv: Sequence[str], run: Path
) -> int:
    """Train with each seed in a separate process, then print means and intervals.

    The folders are ``<run>_seed_<n>``, and the summary is ``<run>_seeds.json``. If a run fails, the error is printed
    and the others continue. ``argv`` are the arguments of ``train``. Returns 0, or the first failed run's exit code.
    """
    check_seeds(config_path, overrides, variant, seeds)
    runs = {seed: run.with_name(f"{run.name}_seed_{seed}") for seed in seeds}
    failed = run_all({each.name: Command(_arguments(argv, seed, each.name)) for seed, each in runs.items()})
    if complete := [seed for seed, each in runs.items() if each.name not in failed and is_complete(each)]:
        path = run.with_name(f"{run.name}_seeds.json")
        summary = summarize_seeds({seed: read_result(runs[seed]) for seed in complete})
        failed_seeds = [seed for seed in sorted(seeds) if runs[seed].name in failed]
        write_json(path, {"seeds": complete, "failed": failed_seeds, **summary})
        print_seeds(summary, complete, path)
    return say_failed(failed, len(runs))


def check_seeds(config_path: str, overrides: Sequence[str], variant: int, seeds: Sequence[int]) -> None:
    """Check that the seeds are different, and that the config takes each of them."""
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds contains a seed twice: {' '.join(map(str, seeds))}")
    for seed in seeds:
        load_config(config_path, [*overrides, f"seed={seed}"], variant)


def summarize_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and interval of every metric over runs, from the contents of ``result.json`` by seed.

    By split, then ``before``, ``after`` and ``change``, then metric: ``mean``, ``standard_error`` and ``interval``
    (Student's t at 95 %; both ``None`` if fewer than two runs have the metric), and ``values`` by seed.
    """
    splits = [key for key, value in next(iter(results.values())).items() if isinstance(value, dict)]
    return {split: _summarize_split({seed: result[split] for seed, result in results.items()}) for split in splits}


def _summarize_split(results: Mapping[int, Mapping[str, Mapping[str, float | None]]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for result in results.values() for key in (*result["after"], *result["before"]))
    summary: dict[str, Any] = {"before": {}, "after": {}, "change": {}}
    for key in keys:
        before, after = (
            {seed: value for seed, each in results.items() if (value := each[when].get(key)) is not None}
            for when in ("before", "after")
        )
        change = {seed: after[seed] - before[seed] for seed in before if seed in after}
        for when, by_seed in zip(summary, (before, after, change), strict=True):
            summary[when][key] = _statistics(by_seed)
    return summary


def _statistics(values: Mapping[int, float]) -> dict[str, Any]:
    known = list(values.values())
    found = mean_estimate(known)
    return {
        "mean": found.value if known else None,
        "standard_error": float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None,
        "interval": None if found.interval is None else [found.interval.low, found.interval.high],
        "values": dict(values),
    }


def print_seeds(summary: Mapping[str, Any], seeds: Sequence[int], path: Path, console: Console | None = None) -> None:
    """Print means and intervals of the test split, and the path of the summary."""
    console = console or Console()
    table = number_table(console, ("metric", "before", "after", "change"), whole_keys=False)
    test = summary["test"]
    for key in filter(is_headline, test["after"]):
        cells = []
        for when, sign in (("before", ""), ("after", ""), ("change", "+")):
            mean, interval = test[when][key]["mean"], test[when][key]["interval"]
            shown = "" if interval is None else f" ({format_interval(Interval(*interval), sign)})"
            cells.append(format_number(mean, sign) + shown)
        table.add_row(Text(key), *cells)
    console.print()
    title = f"Test metrics of seeds {', '.join(map(str, seeds))}: mean (95 % interval over seeds)"
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()
    console.print(Text(f"All metrics by seed: {path}"), soft_wrap=True)


def _arguments(argv: Sequence[str], seed: int, name: str) -> list[str]:
    """Arguments of one seed's run: all but ``--seeds``, followed by overrides, since the last occurrence wins."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seeds", nargs="+")
    _, others = parser.parse_known_args(list(argv))
    how = () if any(flag.startswith(("--resume", "--overwrite")) for flag in others) else RESUMED
    return [*others, *how, "--set", f"seed={seed}", "--experiment_name", name]
