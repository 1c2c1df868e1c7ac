"""Evaluates a trained model with the metrics and sampling settings of its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.files import naming_errors, write_json
from rl4dialog.data.pool import check_split
from rl4dialog.functional.statistics import Interval
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.runs.summary import format_interval, format_number, is_headline, number_table, print_players


def evaluate_split(
    loaded: LoadedPolicy, split: str, folder: Path, about: Mapping[str, Any], by_turn: bool = False
) -> dict[str, float]:
    """Evaluate a policy on a split, write ``metrics.json`` and ``predictions.json``, and print a table.

    For the final model of a run, the metrics are identical to those that the run logged.
    """
    check_split(split)
    check_is_new(folder)
    if by_turn and loaded.conversing is None:
        raise ConfigError("--by_turn compares the turns of conversations, but this config has no env.args.partner")
    evaluator, policy = loaded.evaluator(), loaded.policy
    result = evaluator.run(policy, split, 0)
    gold, players = evaluator.ceiling(policy, split), evaluator.players(policy, split)
    turns = evaluator.by_turn(result, policy, split) if by_turn else []
    n_samples = len(result.predictions)
    make_folder(folder)
    write_json(folder / "predictions.json", result.predictions)
    extras = {name: value for name, value in {"players": players, "by_turn": turns}.items() if value}
    measured = {"split": split, "n_samples": n_samples, "metrics": result.metrics, "gold_replies": gold, **extras}
    write_json(folder / "metrics.json", {**about, **measured})
    print_metrics(split, n_samples, result.metrics, gold, folder, players=players, turns=turns)
    return result.metrics


def evaluation_folder(parent: Path, split: str, checkpoint: str | int | None = None) -> Path:
    """Return an unused folder in ``parent``, named by split, checkpoint, date and time."""
    parts = [split, *([str(checkpoint)] if checkpoint is not None else []), datetime.now().strftime("%Y%m%d_%H%M%S")]
    name, number = "_".join(parts), 1
    while (folder := parent / (name if number == 1 else f"{name}_{number}")).exists():
        number += 1
    return folder


def check_is_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} already exists and is never overwritten; choose another --output_path")


def make_folder(folder: Path) -> None:
    with naming_errors(folder, "; choose another --output_path"):
        folder.mkdir(parents=True, exist_ok=True)


def print_metrics(
    split: str,
    n_samples: int,
    scores: Mapping[str, float],
    gold: Mapping[str, float],
    folder: Path,
    players: Mapping[str, Mapping[str, float]] | None = None,
    turns: Sequence[Mapping[str, float]] = (),
    intervals: Mapping[str, Interval] | None = None,
) -> None:
    """Print the scores of a split and of each turn, those of reference replies and players, and the output folder."""
    console = Console()
    has_references = not gold.keys().isdisjoint(scores)
    titles = ["metric", "score", *["95 % interval"] * bool(intervals), *["references"] * has_references]
    table = number_table(console, titles, whole_keys=False)
    shown = [key for key in scores if is_headline(key)]
    for key in shown:
        interval = [format_interval(intervals.get(key))] if intervals else []
        references = [format_number(gold.get(key))] if has_references else []
        table.add_row(Text(key), format_number(scores[key]), *interval, *references)
    console.print(Text(f"\nMetrics on {n_samples:,} samples of the {split} split", style="bold"))
    console.print(table)
    if len(shown) < len(scores):
        console.print(Text(f"{len(scores) - len(shown)} more scores are in metrics.json", style="dim"))
    print_players(console, "model", scores, players)
    if turns:
        table = number_table(console, ["reply", *map(str, range(1, len(turns) + 1))], whole_keys=False)
        table.add_row("number of replies", *(str(turn["n_replies"]) for turn in turns))
        for key in dict.fromkeys(key for turn in turns for key in turn if key != "n_replies" and is_headline(key)):
            table.add_row(Text(key), *(format_number(turn.get(key)) for turn in turns))
        console.print(Text("\nMetrics of the first reply in each conversation, the second, and so on", style="bold"))
        console.print(table)
    console.print(Text(f"\nEvaluation: {folder}"), soft_wrap=True)
