"""The results of a sweep: table, ``sweep.json``, ``sweep.png``, and the best config as ``best.yml``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from rich.box import Box
from rich.table import Table
from rich.text import Text

from rl4dialog.core.config_blocks import id_of
from rl4dialog.core.console import Console
from rl4dialog.core.files import write_json, write_text
from rl4dialog.core.plugins import absolute_import
from rl4dialog.core.run_format import config_of
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, load_yaml
from rl4dialog.features.experiments.sweep.running import SPLIT, Objective, TrialResult, best_trial, run_names
from rl4dialog.features.experiments.sweep.space import shown_values
from rl4dialog.runs.plots import plain_figure, save_figure, smooth, smoothing_window
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.run_folder import CONFIG_FILE
from rl4dialog.runs.summary import format_number, table_style

RESULT_FILE, PICTURE_FILE, BEST_FILE = "sweep.json", "sweep.png", "best.yml"
_MAX_IN_LEGEND = 8


def write_sweep(
    folder: Path, results: Sequence[TrialResult], objective: Objective, config: dict[str, Any], seeds: Sequence[int]
) -> None:
    """Write the files of a sweep and print a table; ``config`` is the one without the values of a trial."""
    results = [replace(r, runs=[folder / name for name in run_names(r.name, seeds)]) for r in results]
    best, front = best_trial(results, objective), pareto_front(results)
    if objective.metric is None:
        best = None
    rows = [{**asdict(r), "runs": [str(run) for run in r.runs], "on_front": r in front} for r in results]
    about = {**asdict(objective), "split": SPLIT, "best": best.name if best is not None else None}
    write_json(folder / RESULT_FILE, {**about, "trials": rows})
    plot_sweep(results, front, objective, folder / PICTURE_FILE)
    console = Console()
    console.print(_table(results, front, best, objective.metric, table_style(console)))
    named = {state: [r.name for r in results if r.state == state] for state in ("complete", "pruned", "failed")}
    counts = ", ".join(f"{len(names)} {state}" for state, names in named.items() if names) or "none"
    failed = f" ({', '.join(named['failed'])})" if named["failed"] else ""
    console.print(f"Trials: {counts}{failed}", highlight=False)
    if best is not None:
        path = folder / BEST_FILE
        write_text(path, best_config(best, objective, config, len(results)))
        console.print(f"Best config ({best.name}): {path}", soft_wrap=True, highlight=False)
    elif objective.metric is not None:
        limit = "" if objective.max_kl is None else f" with a KL of at most {objective.max_kl}"
        console.print(f"There is no best config: no trial is complete{limit}.", highlight=False)
    console.print(f"Results: {folder / RESULT_FILE} and {PICTURE_FILE}", soft_wrap=True, highlight=False)


def pareto_front(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Pareto-optimal trials by increasing KL: no other trial has at least as much reward at less KL."""
    front: list[TrialResult] = []
    measured = [r for r in results if r.kl is not None and r.reward is not None]
    for result in sorted(measured, key=lambda r: (r.kl, -(r.reward or 0.0))):
        if not front or (result.reward or 0.0) > (front[-1].reward or 0.0):
            front.append(result)
    return front


def base_config(config_path: str, overrides: Sequence[str], variant: int) -> dict[str, Any]:
    """Read a config as a mapping that can be written to another folder: its imports are absolute."""
    config, _ = expand_variants(load_yaml(config_path), variant)
    config = apply_overrides(config, overrides)
    if config.get("imports"):
        config["imports"] = [absolute_import(name, Path(config_path).absolute().parent) for name in config["imports"]]
    return config


def best_config(best: TrialResult, objective: Objective, config: dict[str, Any], n_trials: int) -> str:
    """Return the config of the best trial as YAML, with a header."""
    config = apply_overrides(config, [f"{key}={value}" for key, value in best.values.items()])
    if best.runs and (path := best.runs[0] / CONFIG_FILE).exists():
        written, used = config["alg"], config_of(path).get("alg", {})
        if used and (used["args"], id_of(used, "policy")) != (written.get("args", {}), id_of(written, "policy")):
            config["alg"] = used  # as it was adapted to an overridden alg.id
    header = (
        f"# {best.name}, the best of {n_trials} trials: {objective.metric} {best.value:.6g} on the {SPLIT} split.\n"
        f"# {'; '.join(f'{key}: {value}' for key, value in best.values.items())}\n"
    )
    return header + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _table(
    results: Sequence[TrialResult], front: Sequence[TrialResult], best: TrialResult | None, metric: str | None, box: Box
) -> Table:
    keys = dict.fromkeys(key for result in results for key in result.values)
    table = Table(box=box, pad_edge=False)
    for name in ("trial", *(key.rsplit(".", 1)[-1] for key in keys)):
        table.add_column(Text(name), overflow="fold")
    for name in (*[f"{metric} ({SPLIT})"] * bool(metric), "reward", "KL per token"):
        table.add_column(Text(name), justify="right")
    table.add_column("")
    for result in results:
        numbers = [*([result.value] if metric else []), result.reward]
        kl = format_number(None) if result.kl is None else f"{result.kl:.4f}"
        notes = {"best": result is best, "on the front": result in front, result.state: result.state != "complete"}
        cells = [result.name, *shown_values(result.values), *map(format_number, numbers), kl]
        table.add_row(*map(Text, cells), ", ".join(note for note, holds in notes.items() if holds))
    return table


def plot_sweep(
    results: Sequence[TrialResult], front: Sequence[TrialResult], objective: Objective, output_png: Path
) -> None:
    """Plot reward against KL with the course of each trial and the Pareto front, and the metric of each trial."""
    panels = [*([_plot_front] if front else []), *([_plot_metric] if objective.metric is not None else [])]
    if not panels:
        return
    figure, all_axes = plain_figure(7.0 * len(panels), 4.8, n_columns=len(panels))
    for axes, plot in zip(all_axes, panels, strict=True):
        plot(axes, results, front, objective)
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
