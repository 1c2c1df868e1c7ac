"""Curves and conversations of a run, for notebooks."""

from __future__ import annotations

import io
from pathlib import Path

from markupsafe import escape

from rl4dialog.core.errors import DataError
from rl4dialog.runs.plots import plain_figure
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.metrics import before_and_after
from rl4dialog.runs.report.samples import Answer, Sample, choose_samples

_CURVES = ("rollout/task_reward", "rollout/kl")
_N_SCORES = 3
_BOX = "margin:8px 0;padding:8px;border:1px solid #ccc"
_BUBBLE = "max-width:75%;margin:3px 0;padding:4px 10px;border:1px solid #bbb;border-radius:12px;overflow-wrap:anywhere"


class Shown:
    """A picture or a text that a notebook shows when it is the last value of a cell."""

    def __init__(self, html: str | None = None, png: bytes | None = None) -> None:
        self._html, self._png = html, png

    def _repr_html_(self) -> str | None:
        return self._html

    def _repr_png_(self) -> bytes | None:
        return self._png


def show_curves(run: str | Path, *keys: str) -> Shown:
    """Draw numbers of a run by iteration.

    Args:
        run: The run folder.
        keys: Logged numbers, such as ``train/value_loss``; by default the reward and the KL divergence.

    Returns:
        A picture, which a notebook shows.

    Raises:
        DataError: If the run has none of these numbers.
    """
    found = read_run(run)
    known = [key for key in keys or _CURVES if any(key in row for row in found.iterations)]
    if not known:
        there = ", ".join(sorted({key for row in found.iterations for key in row})) or "none"
        raise DataError(f"{found.path} has no {' or '.join(keys or _CURVES)}; logged numbers: {there}")
    figure, all_axes = plain_figure(4.2 * len(known), 2.8, n_columns=len(known))
    for key, axes in zip(known, all_axes, strict=True):
        axes.plot(found.column("iteration"), found.column(key), marker=".")
        axes.set(title=key, xlabel="iteration")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return Shown(png=file.getvalue())


def show_conversations(run: str | Path, n: int = 2, split: str = "test") -> Shown:
    """Show conversations, or prompts with replies, before and after training: the best and the worst ones first.

    Args:
        run: The run folder.
        n: Their number.
        split: Split of the evaluations.

    Returns:
        HTML, which a notebook shows.

    Raises:
        DataError: If the run was not evaluated on this split.
    """
    found = read_run(run)
    pair = zip(("before training", "after training"), before_and_after(found, split), strict=True)
    evaluations = {label: each for label, each in pair if each is not None}
    if not evaluations:
        raise DataError(f"{found.path} has no evaluation of the {split} split")
    return Shown("".join(map(_card, choose_samples(evaluations, n))))


def _card(sample: Sample) -> str:
    goal = f"<p><b>Goal:</b> {escape(sample.goal)}</p>" if sample.goal else ""
    columns = "".join(f'<div style="flex:1;min-width:0">{_column(sample, each)}</div>' for each in sample.answers)
    return f'<div style="{_BOX}">{goal}<div style="display:flex;gap:16px">{columns}</div></div>'


def _column(sample: Sample, answer: Answer) -> str:
    if answer.bubbles is None:
        said = [((len(sample.turns) - i) % 2 == 0, text) for i, text in enumerate(sample.turns)]
        said.append((True, "".join(piece.text for piece in answer.reply)))
    else:
        said = [(each.speaker == "agent", each.text) for each in [*sample.given, *answer.bubbles]]
    lines = "".join(_bubble(is_agent, text) for is_agent, text in said)
    known = [(key, value) for key, value in answer.scores.items() if value is not None]
    scores = ", ".join(f"{escape(key)} {value:.3g}" for key, value in known[:_N_SCORES])
    return f"<b>{escape(answer.label)}</b>{lines}<small>{scores}</small>"


def _bubble(is_agent: bool, text: str) -> str:
    row = f"display:flex;justify-content:{'flex-end' if is_agent else 'flex-start'}"
    return f'<div style="{row}"><span style="{_BUBBLE}">{escape(text) or "…"}</span></div>'
