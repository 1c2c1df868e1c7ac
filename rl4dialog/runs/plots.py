"""Plots of runs, drawn from their files without a display."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import json_object, replaced
from rl4dialog.runs.run_folder import CONFIG_FILE, ROLLOUT_INFO_FILE

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
    """Plot the task reward over the iterations, and the KL to the reference with its target if the run has one.

    From 20 iterations on, bold lines are moving averages over a tenth of the run, and thin lines are the raw values.

    Args:
        run_path: A run folder with ``rollout_info.jsonl``; the KL target is read from its ``config.json``.
        output_png: The output image.
    """
    from matplotlib.ticker import MaxNLocator

    run_path = Path(run_path)
    rows = _read_rows(run_path / ROLLOUT_INFO_FILE)
    target = _target_kl(run_path / CONFIG_FILE)
    iterations = [float(row.get("iteration", index)) for index, row in enumerate(rows, start=1)]

    figure = _figure(height=4.8)
    has_kl = any("rollout/kl" in row for row in rows)
    reward_axes, *kl_axes = figure.subplots(
        1 + has_kl, 1, sharex=True, height_ratios=(3, 2)[: 1 + has_kl], squeeze=False
    )[:, 0]
    reward_key = "rollout/task_reward" if "rollout/task_reward" in rows[0] else "rollout/ep_rew_mean"
    _draw(reward_axes, iterations, _column(rows, reward_key), _REWARD_COLOR, None)
    reward_axes.set_ylabel("task reward per episode")
    for axes in kl_axes:
        _draw(axes, iterations, _column(rows, "rollout/kl"), _KL_COLOR, "policy to reference")
        if target is not None:
            axes.axhline(target, color="gray", linestyle="--", linewidth=1, label=f"target ({target:g})")
        axes.set_ylabel("KL per token [nats]")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.legend(loc="best", frameon=False, fontsize="small")
    for axes in (reward_axes, *kl_axes):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    save_figure(figure, output_png)


def plot_comparison(runs: Mapping[str, Sequence[str | Path]], output_png: str | Path) -> None:
    """Plot reward and KL of several groups of runs over the collected agent tokens.

    Each line is the mean over the runs of a group, which differ in their seed; the band spans the minimum and maximum.
    All curves are smoothed over a tenth of a run. Runs of unequal length are cut to the shortest.

    Args:
        runs: Run folders by label.
        output_png: The output image.
    """
    figure, all_axes = _comparison_figure(runs, n_plots=2)
    for i, (label, folders) in enumerate(runs.items()):
        tables = [_read_rows(Path(folder) / ROLLOUT_INFO_FILE) for folder in folders]
        if not all("rollout/tokens" in row for rows in tables for row in rows):
            raise DataError(f"{label} has no agent tokens to plot over; `rl4dialog report` compares runs of all kinds")
        length = min(map(len, tables))
        window = smoothing_window(length)
        tokens = mean_curve([list(itertools.accumulate(_column(rows[:length], "rollout/tokens"))) for rows in tables])
        for axes, key in zip(all_axes, ("rollout/task_reward", "rollout/kl"), strict=True):
            curves = [smooth(_column(rows[:length], key), window) for rows in tables]
            _draw_band(axes, tokens, curves, f"C{i}", label)
    for axes, name in zip(all_axes, ("task reward per episode", "KL per token [nats]"), strict=True):
        axes.set_ylabel(name)
    all_axes[0].legend(loc="best", frameon=False, fontsize="small")
    all_axes[1].set_xlabel("agent tokens")
    save_figure(figure, output_png)


def plot_evaluations(
    runs: Mapping[str, Sequence[str | Path]], metric: str, output_png: str | Path, split: str = "val"
) -> None:
    """Plot a metric of several groups of runs over the iterations, with bands like :func:`plot_comparison`.

    Args:
        runs: Run folders by label.
        metric: The metric, such as ``conversation/return``.
        output_png: The output image.
        split: The split that was evaluated during training.
    """
    figure, (axes,) = _comparison_figure(runs, n_plots=1)
    for i, (label, folders) in enumerate(runs.items()):
        files = [Path(folder) / f"{split}_split_metrics.jsonl" for folder in folders]
        tables = [_read_rows(file) for file in files]
        for file, rows in zip(files, tables, strict=True):
            if metric not in rows[-1]["metrics"]:
                raise DataError(f"{file} has no metric {metric!r}; it has {', '.join(sorted(rows[-1]['metrics']))}")
        epochs = [[row["epoch"] for row in rows] for rows in tables]
        if any(other != epochs[0] for other in epochs):
            raise DataError(f"the runs of {label} were evaluated after different iterations")
        _draw_band(axes, epochs[0], [[row["metrics"][metric] for row in rows] for rows in tables], f"C{i}", label)
    axes.set_ylabel(f"{metric}, {split} split")
    axes.set_xlabel("iteration")
    axes.legend(loc="best", frameon=False, fontsize="small")
    save_figure(figure, output_png)


def _figure(height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _comparison_figure(runs: Mapping[str, Sequence[str | Path]], n_plots: int) -> tuple[Any, list[Any]]:
    if not runs or not all(runs.values()):
        raise DataError("there are no runs to compare")
    figure = _figure(height=2.0 + 2.0 * n_plots)
    all_axes = list(figure.subplots(n_plots, 1, sharex=True, squeeze=False)[:, 0])
    for axes in all_axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, all_axes


def _draw_band(axes: Any, x: Sequence[float], curves: Sequence[Sequence[float]], color: str, label: str) -> None:
    """Draw the mean of the curves, and a band from the lowest to the highest."""
    axes.plot(x, mean_curve(curves), color=color, linewidth=2, label=label)
    lowest, highest = ([f(values) for values in zip(*curves, strict=True)] for f in (min, max))
    axes.fill_between(x, lowest, highest, color=color, alpha=0.15, linewidth=0)


def plot_correlations(
    rating: str, bars: Sequence[tuple[str, float, tuple[float, float]]], output_png: str | Path
) -> None:
    """Plot rank correlations with a rating as horizontal bars, with their confidence intervals.

    Args:
        rating: Name of the rating.
        bars: Name, correlation and bounds of the interval of each score, from top to bottom; NaN for no interval.
        output_png: The output image.
    """
    figure = _figure(height=1.2 + 0.28 * len(bars))
    axes = figure.subplots()
    for row, (name, value, (low, high)) in enumerate(bars):
        color = "tab:gray" if name.startswith("baseline/") else _REWARD_COLOR
        axes.barh(row, value, color=color, alpha=0.7)
        axes.plot([low, high], [row, row], color="black", linewidth=1)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars], fontsize="small")
    axes.invert_yaxis()
    axes.axvline(0.0, color="gray", linewidth=1)
    axes.set_xlabel(f"Spearman correlation with {rating!r} (gray: length alone)")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, output_png)


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
    smoothed = []
    reach = window // 2
    for index in range(len(values)):
        near = [value for value in values[max(0, index - reach) : index + reach + 1] if not math.isnan(value)]
        smoothed.append(sum(near) / len(near) if near else math.nan)
    return smoothed


def _column(rows: list[dict[str, Any]], key: str) -> list[float]:
    return [math.nan if row.get(key) is None else float(row[key]) for row in rows]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json_object(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty: there is nothing to plot")
    return rows


def _target_kl(path: Path) -> float | None:
    try:
        config = json_object(path.read_text(encoding="utf-8"))
        target = ((config.get("alg") or {}).get("kl_div") or {}).get("target_kl")
        return None if target is None else float(target)
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # the plot works without a target
