"""The picture of a sweep: reward against KL, and the metric by trial."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4dialog.experiments.sweep.space import shown_values
from rl4dialog.experiments.sweep.trials import SPLIT, Objective, TrialResult
from rl4dialog.runs.plots import save_figure, smooth, smoothing_window
from rl4dialog.runs.report.runs import read_run

_MAX_IN_LEGEND = 8


def plot_sweep(
    results: Sequence[TrialResult], front: Sequence[TrialResult], objective: Objective, output_png: Path
) -> None:
    """Plot reward against KL with the course of each trial, and the metric of each trial.

    Args:
        results: Results of all trials.
        front: Those on the Pareto front of reward and KL, by increasing KL.
        objective: What trials are compared by.
        output_png: The output image.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [*([_plot_front] if front else []), *([_plot_metric] if objective.metric is not None else [])]
    if not panels:
        return
    figure = Figure(figsize=(7.0 * len(panels), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, plot in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        plot(axes, results, front, objective)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, output_png)


def _plot_front(axes: Any, results: Sequence[TrialResult], front: Sequence[TrialResult], objective: Objective) -> None:
    axes.plot([r.kl for r in front], [r.reward for r in front], color="gray", ls="--", lw=1, label="front")
    shown = [(i, result) for i, result in enumerate(results) if result.kl is not None and result.reward is not None]
    for i, result in shown:
        log = read_run(result.runs[0])
        window = smoothing_window(len(log.iterations))
        path = [smooth(log.column(key), window) for key in ("rollout/kl", "rollout/task_reward")]
        axes.plot(*path, color=f"C{i}", linewidth=1, alpha=0.3, zorder=2)
        label = ", ".join(shown_values(result.values)) if len(shown) <= _MAX_IN_LEGEND else None
        axes.scatter([result.kl], [result.reward], color=f"C{i}", s=50, zorder=3, label=label)
        if label is None:
            axes.annotate(result.name.removeprefix("trial_"), (result.kl, result.reward), fontsize="x-small")
    if objective.max_kl is not None:
        axes.axvline(objective.max_kl, color="gray", lw=1, ls=":", label="max_kl")
    axes.set_xlabel("KL to the reference per token [nats]")
    axes.set_ylabel("task reward per episode")
    title = ", ".join(key.rsplit(".", 1)[-1] for key in front[0].values)
    axes.legend(title=title, loc="lower right", frameon=False, fontsize="small")


def _plot_metric(axes: Any, results: Sequence[TrialResult], front: Sequence[TrialResult], objective: Objective) -> None:
    complete = [(i, r.value) for i, r in enumerate(results) if r.state == "complete" and r.value is not None]
    numbers, values = [i for i, _ in complete], [value for _, value in complete]
    best = list(itertools.accumulate(values, max if objective.direction == "maximize" else min))
    axes.scatter(numbers, values, color="C0", label="trial")
    axes.step(numbers, best, where="post", color="gray", lw=1, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"{objective.metric} ({SPLIT})")
    axes.legend(loc="lower right", frameon=False, fontsize="small")
