"""Selects the replies that the page shows: the extremes by each score, and some in between."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rl4dialog.runs.report.predictions import Predictions

MAX_SAMPLES = 200
REWARD_KEY = "reward"

_MAX_CHARACTERS = 2000
_TURN_MARKER = "<EOU>"


@dataclass(frozen=True)
class Sample:
    """One prompt with its replies; missing scores are ``None``.

    Attributes:
        sample_id: Id of the sample.
        turns: Turns of the prompt, ending with the one to answer.
        references: Reference replies.
        before: Reply before training, if any.
        after: Reply after training, if any.
        scores: Scores before and after training, by key.
    """

    sample_id: str
    turns: list[str]
    references: list[str]
    before: str | None
    after: str | None
    scores: dict[str, tuple[float | None, float | None]]


def sort_keys(before: Predictions | None, after: Predictions | None) -> list[str]:
    """Scores to sort samples by, with the reward and its parts first."""
    keys = dict.fromkeys(key for predictions in (after, before) if predictions for key in predictions.scores)
    return sorted(keys, key=lambda key: (key != REWARD_KEY, not key.startswith(f"{REWARD_KEY}/")))


def choose_samples(before: Predictions | None, after: Predictions | None, n: int = MAX_SAMPLES) -> list[Sample]:
    """Select the samples to show.

    If there are more than ``n``, the selection alternates between the best, the worst, the most improved and the most
    degraded ones by reward (without a reward, by each score), and evenly spaced ones.

    Args:
        before: Replies before training.
        after: Replies to the same samples after training.
        n: Maximum number of samples.
    """
    shown = after or before
    if shown is None:
        return []
    keys = sort_keys(before, after)
    rows = range(len(shown))
    chosen: Sequence[int] = rows
    if len(shown) > n:
        chosen = sorted(_in_turn(_rankings(before, after, keys[:1] if REWARD_KEY in keys else keys, n), n))
    return [_sample(row, before, after, keys) for row in chosen]


def _rankings(
    before: Predictions | None, after: Predictions | None, keys: Sequence[str], n: int
) -> Iterator[Sequence[int]]:
    """Rows ranked by each criterion, most relevant first."""
    shown = after or before
    assert shown is not None
    for key in keys:
        columns = [shown.scores[key]] if key in shown.scores else []
        if before and after and key in before.scores and key in after.scores:
            columns.append(after.scores[key] - before.scores[key])
        for values in columns:
            order = [int(row) for row in np.argsort(values, kind="stable") if not np.isnan(values[row])]
            yield order
            yield order[::-1]
    spaced = [int(row) for row in np.linspace(0, len(shown) - 1, n)]
    yield list(dict.fromkeys([*spaced[:: max(1, n // 20)], *spaced]))


def _in_turn(rankings: Iterator[Sequence[int]], n: int) -> set[int]:
    chosen: set[int] = set()
    for rank in itertools.zip_longest(*rankings):
        for row in rank:
            if len(chosen) == n:
                return chosen
            if row is not None:
                chosen.add(row)
    return chosen


def _sample(row: int, before: Predictions | None, after: Predictions | None, keys: Sequence[str]) -> Sample:
    shown = after or before
    assert shown is not None
    turns = [turn.strip() for turn in shown.prompts[row].split(_TURN_MARKER)]
    return Sample(
        shown.sample_ids[row],
        [_clipped(turn) for turn in turns if turn],
        [_clipped(reference) for reference in shown.references[row]],
        _clipped(before.replies[row]) if before else None,
        _clipped(after.replies[row]) if after else None,
        {key: (_score(before, key, row), _score(after, key, row)) for key in keys},
    )


def _score(predictions: Predictions | None, key: str, row: int) -> float | None:
    if predictions is None or key not in predictions.scores:
        return None
    value = float(predictions.scores[key][row])
    return None if np.isnan(value) else round(value, 4)


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"
