"""Plots of runs, drawn from their files without a display."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import replaced
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.reading import Run, number, read_run
from rl4dialog.runs.run_folder import ROLLOUT_INFO_FILE

_logger = logging.getLogger(__name__)
_REWARD_COLOR, _KL_COLOR = "tab:blue", "tab:orange"
# Shorter runs are not smoothed.
_MIN_ITERATIONS_TO_SMOOTH = 20


def plot_reward_curve_or_warn(run_path: str | Path, output_png: str | Path) -> None:
    """Plot a run that has just ended; a failure is only a warning."""
    try:
        plot_reward_curve(run_path, output_png)
    except Exception as error:
        _logger.warning("the plot %s could not be written: %s", output_png, error)


def plot_reward_curve(run_path: str | Path, output_png: str | Path) -> None:
    """Plot task reward, KL and its target over iterations, from 20 on with averages over a tenth of the run."""
    from matplotlib.ticker import MaxNLocator

    run = read_iterations(run_path)
    iterations, target = run.column("iteration"), number(flatten(run.config).get("alg.kl_div.target_kl"))
    has_kl = any("rollout/kl" in row for row in run.iterations)
    figure, all_axes = plain_figure(7.0, 4.8, n_rows=1 + has_kl, height_ratios=(3, 2)[: 1 + has_kl])
    reward_key = "rollout/task_reward" if "rollout/task_reward" in run.iterations[0] else "rollout/ep_rew_mean"
    _draw(all_axes[0], iterations, run.column(reward_key), _REWARD_COLOR, None)
    all_axes[0].set_ylabel("task reward per episode")
    for axes in all_axes[1:]:
        _draw(axes, iterations, run.column("rollout/kl"), _KL_COLOR, "policy to reference")
        if not math.isnan(target):
            axes.axhline(target, color="gray", linestyle="--", linewidth=1, label=f"target ({target:g})")
        axes.set_ylabel("KL per token [nats]")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.legend(loc="best", frameon=False, fontsize="small")
    all_axes[-1].set_xlabel("iteration")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    save_figure(figure, output_png)


def plain_figure(
    width: float, height: float, n_rows: int = 1, n_columns: int = 1, **arrangement: Any
) -> tuple[Any, list[Any]]:
    """A figure of matplotlib that needs no display, and its axes, with a grid and without a frame."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(n_rows, n_columns, sharex="col", squeeze=False, **arrangement).flat)
    for axes in all_axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, all_axes


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure to a file, in the format of its suffix; an existing file is replaced at the end."""
    with replaced(path) as temporary:
        figure.savefig(temporary, dpi=150, format=Path(path).suffix.lstrip(".") or None)


def mean_curve(columns: Sequence[Sequence[float]]) -> list[float]:
    """Return the pointwise mean of several curves."""
    return [sum(values) / len(values) for values in zip(*columns, strict=True)]


def _draw(axes: Any, x: list[float], y: list[float], color: str, label: str | None) -> None:
    if len(y) < _MIN_ITERATIONS_TO_SMOOTH:
        axes.plot(x, y, color=color, linewidth=2, marker="o", markersize=3, label=label)
        return
    axes.plot(x, y, color=color, linewidth=1, alpha=0.35)
    axes.plot(x, smooth(y, smoothing_window(len(y))), color=color, linewidth=2, label=label)


def smoothing_window(n: int) -> int:
    """Window size for smoothing a curve of ``n`` iterations; 1 means no smoothing."""
    return max(5, n // 10) if n >= _MIN_ITERATIONS_TO_SMOOTH else 1


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centered moving average, with shorter windows at both ends; ignores NaN."""
    reach, smoothed = window // 2, []
    for index in range(len(values)):
        near = [value for value in values[max(0, index - reach) : index + reach + 1] if not math.isnan(value)]
        smoothed.append(sum(near) / len(near) if near else math.nan)
    return smoothed


def read_iterations(folder: str | Path) -> Run:
    """Read a run that has iterations to plot."""
    run = read_run(folder)
    if not run.iterations:
        raise DataError(f"{folder} has no iterations in {ROLLOUT_INFO_FILE}: there is nothing to plot")
    return run
