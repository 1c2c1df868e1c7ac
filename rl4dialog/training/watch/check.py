"""Checks of a running run: each is a rule on the logged values with a line of advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class History:
    """Logged values by iteration. Missing values and ``None`` are NaN."""

    def __init__(self) -> None:
        self._records: list[dict[str, float]] = []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the next iteration: its number as ``iteration``, and its values by key."""
        numbers = {key: np.nan if value is None else value for key, value in record.items()}
        self._records.append({k: float(v) for k, v in numbers.items() if isinstance(v, (int, float, np.number))})

    def __len__(self) -> int:
        return len(self._records)

    @property
    def now(self) -> dict[str, float]:
        """The last iteration's values."""
        return self._records[-1]

    def first(self, key: str, n: int) -> np.ndarray:
        """Values of the first n iterations. Shape (n,), or shorter early in a run."""
        return self._column(key, self._records[:n])

    def last(self, key: str, n: int) -> np.ndarray:
        """Values of the last n iterations; empty if there are fewer."""
        return self._column(key, self._records[-n:]) if len(self) >= n else np.zeros(0)

    @staticmethod
    def _column(key: str, records: list[dict[str, float]]) -> np.ndarray:
        return np.array([record.get(key, np.nan) for record in records])


@dataclass(frozen=True)
class RunFacts:
    """Settings that affect how logged values are judged.

    Attributes:
        precision: ``fp32`` or ``bf16``.
        target_kl: Target KL per token, if any.
        reward_weights: Weight of each reward part; 1 if it is not set.
        max_turns: Maximum number of agent utterances per conversation.
        values_are_returns: Whether learned values Q estimate returns of a log.
    """

    precision: str = "fp32"
    target_kl: float | None = None
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    max_turns: int = 1
    values_are_returns: bool = True


Rule = Callable[[History, RunFacts], "str | None"]


@dataclass(frozen=True)
class Check:
    """A check for one problem.

    Attributes:
        name: Name in the records.
        advice: One line of advice.
        rule: Returns a description of the problem in the last iteration, or ``None``.
    """

    name: str
    advice: str
    rule: Rule


def check(advice: str) -> Callable[[Rule], Check]:
    """Turn the decorated rule into a check of the same name."""
    return lambda rule: Check(rule.__name__, advice, rule)


def mean(values: np.ndarray) -> float:
    """Mean, or NaN without values. Comparisons with NaN are false."""
    return float(values.mean()) if len(values) else float("nan")
