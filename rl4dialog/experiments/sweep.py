"""Trains one config with several values of a key, one run after another, and plots reward against KL."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl4dialog.core.config import load_config, text_config
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.experiments.own_process import run_command
from rl4dialog.runs.plots import smooth, smoothing_window
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.run_folder import write_json
from rl4dialog.runs.summary import table_style


@dataclass(frozen=True)
class SweepPoint:
    """The result of a run, averaged over the last tenth of its iterations.

    Attributes:
        value: Value of the swept key.
        run: The run folder.
        kl: KL to the reference per token, in nats.
        reward: Task reward per episode.
        kl_path: KL of all iterations, smoothed.
        reward_path: Task reward of all iterations, smoothed.
    """

    value: str
    run: Path
    kl: float
    reward: float
    kl_path: list[float]
    reward_path: list[float]


def sweep(
    config_path: str,
    overrides: Sequence[str],
    variant: int,
    key: str,
    values: Sequence[str],
    argv: Sequence[str],
    project: Path,
    experiment_name: str,
) -> int:
    """Train with each value in a separate process, then plot reward against KL.

    The runs are ``<experiment_name>_<value>`` in the project folder; next to them are ``<experiment_name>_sweep.json``
    and ``.png``. If a run fails, the error is printed and the other runs continue.

    Args:
        config_path: The config file, which is checked with each value before the first run.
        overrides: Overrides of the config.
        variant: Variant of the config.
        key: The swept key, such as ``alg.kl_div.target_kl``.
        values: Distinct values of the key.
        argv: Arguments of the console command ``train``.
        project: The project folder.
        experiment_name: Common prefix of all runs.

    Returns:
        Exit code: 0 if all runs succeeded, otherwise that of the first failed run.

    Raises:
        ConfigError: If the config is invalid, or a value is repeated.
    """
    names = {value: f"{experiment_name}_{re.sub(r'[^A-Za-z0-9.+-]', '_', value)}" for value in values}
    if len(set(names.values())) < len(values):
        raise ConfigError(f"--values contains a value twice: {' '.join(values)}")
    for value in values:
        text_config(load_config(config_path, [*overrides, f"{key}={value}"], variant))
    failed: dict[str, int] = {}
    for number, (value, name) in enumerate(names.items(), start=1):
        print(f"{key}={value} ({number} of {len(names)})", file=sys.stderr, flush=True)
        code = run_command(["train", *argv, "--set", f"{key}={value}", "--experiment_name", name])
        if code:
            failed[value] = code
            print(f"error: the run with {key}={value} failed (exit code {code})", file=sys.stderr, flush=True)
    points = [read_point(value, project / name) for value, name in names.items() if value not in failed]
    if points:
        write_sweep(key, points, project / f"{experiment_name}_sweep")
    return next(iter(failed.values()), 0)


def read_point(value: str, run: Path) -> SweepPoint:
    """Read the result of a run.

    Raises:
        DataError: If it has no iteration with reward and KL.
    """
    log = read_run(run)
    curves = [log.column(key) for key in ("rollout/kl", "rollout/task_reward")]
    n = len(log.iterations)
    last = [values[-math.ceil(n / 10) :] for values in curves]
    kl, reward = (sum(values) / len(values) if values else math.nan for values in last)
    if math.isnan(kl) or math.isnan(reward):
        raise DataError(f"the run {run} has no iteration with rollout/kl and rollout/task_reward in its logs")
    window = smoothing_window(n)
    return SweepPoint(value, run, kl, reward, *(smooth(values, window) for values in curves))


def pareto_front(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Pareto-optimal points by increasing KL: no other point has at least as much reward at less KL."""
    front: list[SweepPoint] = []
    for point in sorted(points, key=lambda p: (p.kl, -p.reward)):
        if not front or point.reward > front[-1].reward:
            front.append(point)
    return front


def write_sweep(key: str, points: Sequence[SweepPoint], path: Path) -> None:
    """Write the plot and the numbers, and print a table.

    Args:
        key: The swept key.
        points: One per run.
        path: Path of both files, without ``.png`` and ``.json``.
    """
    picture, numbers = path.with_name(path.name + ".png"), path.with_name(path.name + ".json")
    front = pareto_front(points)
    plot_sweep(key, points, picture)
    rows = [{**asdict(point), "run": str(point.run), "on_front": point in front} for point in points]
    write_json(numbers, {"key": key, "runs": rows})
    console = Console()
    table = Table(key, "reward", "KL per token", "on the front", box=table_style(console), pad_edge=False)
    for point in points:
        table.add_row(point.value, f"{point.reward:.3f}", f"{point.kl:.4f}", "yes" if point in front else "")
    console.print(table)
    console.print(f"Reward against KL: {picture}", soft_wrap=True, highlight=False)


def plot_sweep(key: str, points: Sequence[SweepPoint], output_png: Path) -> None:
    """Plot the result of each run, its path during training, and the Pareto front.

    Args:
        key: The swept key.
        points: One per run.
        output_png: The output image.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    front = pareto_front(points)
    axes.plot([p.kl for p in front], [p.reward for p in front], color="gray", ls="--", lw=1, label="front")
    for i, point in enumerate(points):
        axes.plot(point.kl_path, point.reward_path, color=f"C{i}", linewidth=1, alpha=0.3, zorder=2)
        axes.scatter([point.kl], [point.reward], color=f"C{i}", s=50, zorder=3, label=point.value)
    axes.set_xlabel("KL to the reference per token [nats]")
    axes.set_ylabel("task reward per episode")
    axes.legend(title=key.rsplit(".", 1)[-1], loc="lower right", frameon=False, fontsize="small")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output_png, dpi=150)


def arguments_of_train(argv: Sequence[str]) -> list[str]:
    """Return the arguments of ``train`` among those of a sweep."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--key")
    parser.add_argument("--values", nargs="+")
    return parser.parse_known_args(list(argv))[1]
