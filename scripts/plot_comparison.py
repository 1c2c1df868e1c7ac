"""Plot reward and KL, or a metric of evaluations, of several groups of runs: one line per group, a band over its seeds.

python scripts/plot_comparison.py --output comparison.png PPO=runs/p/ppo_0,runs/p/ppo_1 NLPO=runs/p/nlpo_0
python scripts/plot_comparison.py --metric conversation/return --output returns.png ILQL=runs/p/ilql_0 BC=runs/p/bc_0
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import script

from rl4dialog.core.errors import DataError
from rl4dialog.runs.plots import mean_curve, plain_figure, read_iterations, save_figure, smooth, smoothing_window
from rl4dialog.runs.reading import read_run


def plot_comparison(runs: Mapping[str, Sequence[str | Path]], output_png: str | Path) -> None:
    """Plot reward and KL of groups of run folders, by label, over the collected agent tokens.

    Each line is the mean over the runs of a group, which differ in their seed; the band spans the minimum and maximum.
    All curves are smoothed over a tenth of a run. Runs of unequal length are cut to the shortest.
    """
    figure, all_axes = _comparison_figure(runs, "task reward per episode", "KL per token [nats]")
    for i, (label, folders) in enumerate(runs.items()):
        found = list(map(read_iterations, folders))
        if not all("rollout/tokens" in row for run in found for row in run.iterations):
            raise DataError(f"{label} has no agent tokens to plot over; `rl4dialog report` compares runs of all kinds")
        length = min(len(run.iterations) for run in found)
        window = smoothing_window(length)
        tokens = mean_curve([list(itertools.accumulate(run.column("rollout/tokens")[:length])) for run in found])
        for axes, key in zip(all_axes, ("rollout/task_reward", "rollout/kl"), strict=True):
            _draw_band(axes, tokens, [smooth(run.column(key)[:length], window) for run in found], f"C{i}", label)
    _save_comparison(figure, all_axes, "agent tokens", output_png)


def plot_evaluations(
    runs: Mapping[str, Sequence[str | Path]], metric: str, output_png: str | Path, split: str = "val"
) -> None:
    """Plot a metric of groups of run folders over the iterations, with bands like :func:`plot_comparison`."""
    figure, all_axes = _comparison_figure(runs, f"{metric}, {split} split")
    for i, (label, folders) in enumerate(runs.items()):
        evaluations = [read_run(folder).metrics.get(split, {}) for folder in folders]
        for folder, found in zip(folders, evaluations, strict=True):
            known = found[max(found)] if found else {}
            if metric not in known:
                raise DataError(f"{folder} has no metric {metric!r} of {split}; it has {', '.join(sorted(known))}")
        epochs = [sorted(found) for found in evaluations]
        if any(other != epochs[0] for other in epochs):
            raise DataError(f"the runs of {label} were evaluated after different iterations")
        curves = [[found[epoch][metric] for epoch in epochs[0]] for found in evaluations]
        _draw_band(all_axes[0], epochs[0], curves, f"C{i}", label)
    _save_comparison(figure, all_axes, "iteration", output_png)


def _comparison_figure(runs: Mapping[str, Sequence[str | Path]], *y_labels: str) -> tuple[Any, list[Any]]:
    if not runs or not all(runs.values()):
        raise DataError("there are no runs to compare")
    figure, all_axes = plain_figure(7.0, 2.0 + 2.0 * len(y_labels), n_rows=len(y_labels))
    for axes, name in zip(all_axes, y_labels, strict=True):
        axes.set_ylabel(name)
    return figure, all_axes


def _save_comparison(figure: Any, all_axes: Sequence[Any], x_label: str, output_png: str | Path) -> None:
    all_axes[0].legend(loc="best", frameon=False, fontsize="small")
    all_axes[-1].set_xlabel(x_label)
    save_figure(figure, output_png)


def _draw_band(axes: Any, x: Sequence[float], curves: Sequence[Sequence[float]], color: str, label: str) -> None:
    """Draw the mean of the curves, and a band from the lowest to the highest."""
    axes.plot(x, mean_curve(curves), color=color, linewidth=2, label=label)
    lowest, highest = ([f(values) for values in zip(*curves, strict=True)] for f in (min, max))
    axes.fill_between(x, lowest, highest, color=color, alpha=0.15, linewidth=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", default="comparison.png", help="output image (default: comparison.png)")
    parser.add_argument("--metric", help="metric of evaluations on the val split (default: reward and KL of rollouts)")
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER,FOLDER", help="label and run folders of one group")
    args = parser.parse_args()
    kinds = dict(text.partition("=")[::2] for text in args.runs)
    runs = {label: [folder for folder in folders.split(",") if folder] for label, folders in kinds.items()}
    if args.metric:
        plot_evaluations(runs, args.metric, args.output)
    else:
        plot_comparison(runs, args.output)


if __name__ == "__main__":
    script.run(main)
