"""What the console shows when a run ends: metrics before and after, dialogues side by side, and where the run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Example:
    """One prompt with the reply before and after training, and the gold reply."""

    prompt: str
    before: str
    after: str
    gold: str


def print_summary(
    before: Mapping[str, float],
    after: Mapping[str, float],
    gold: Mapping[str, float] | None,
    examples: Sequence[Example],
    run_path: Path,
    console: Console | None = None,
) -> None:
    """Print the end of a run.

    Args:
        before: Test metrics before training.
        after: Test metrics after it.
        gold: Test metrics of the reference replies themselves: the ceiling.
        examples: Shown side by side.
        run_path: The run folder.
        console: Where to print; by default the standard output.
    """
    console = console or Console()
    table = Table(title="Test metrics")
    table.add_column("metric", overflow="fold")
    for name in ("before", "after", "change", *(["gold replies"] if gold else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for key in after:
        old, new = before.get(key), after[key]
        row = [_number(old), _number(new), "" if old is None else f"{new - old:+.3f}"]
        if gold:
            row.append(_number(gold.get(key)))
        table.add_row(key, *row)
    console.print(table)
    if examples:
        dialogues = Table(title="The same prompts, before and after", show_lines=True)
        for name in ("prompt", "before", "after", "gold"):
            dialogues.add_column(name, overflow="fold", ratio=1)
        for example in examples:
            prompt = example.prompt.replace("<EOU>", "\n").strip()
            dialogues.add_row(prompt, example.before, example.after, example.gold)
        console.print(dialogues)
    console.print(f"Run folder: {run_path}", soft_wrap=True, highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
