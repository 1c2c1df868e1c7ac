"""What a check of a run reads, and what it is: a rule on the logged values, and a line of advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class History:
    """What was logged, an iteration at a time; what was not logged, or is ``None``, is NaN."""

    def __init__(self) -> None:
        self._records: list[dict[str, float]] = []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the next iteration: ``iteration``, and the values by key."""
        numbers = {key: np.nan if value is None else value for key, value in record.items()}
        self._records.append({k: float(v) for k, v in numbers.items() if isinstance(v, (int, float, np.number))})

    def __len__(self) -> int:
        return len(self._records)

    @property
    def now(self) -> dict[str, float]:
        """The last iteration's values."""
        return self._records[-1]

    def first(self, key: str, n: int) -> np.ndarray:
        """Values of the first n iterations. Shape (n,), or less so early in a run."""
        return self._column(key, self._records[:n])

    def last(self, key: str, n: int) -> np.ndarray:
        """Values of the last n iterations; none in a run that has not as many."""
        return self._column(key, self._records[-n:]) if len(self) >= n else np.zeros(0)

    @staticmethod
    def _column(key: str, records: list[dict[str, float]]) -> np.ndarray:
        return np.array([record.get(key, np.nan) for record in records])


@dataclass(frozen=True)
class RunFacts:
    """What is set, and decides how logged values are to be judged.

    Attributes:
        precision: ``fp32`` or ``bf16``.
        target_kl: Wanted KL per token, if any.
        reward_weights: Weight of each part of the reward; 1 where none is given.
    """

    precision: str = "fp32"
    target_kl: float | None = None
    reward_weights: Mapping[str, float] = field(default_factory=dict)


Rule = Callable[[History, RunFacts], "str | None"]


@dataclass(frozen=True)
class Check:
    """A sign of trouble.

    Attributes:
        name: Under which it is written down.
        advice: What to do, in a line.
        rule: Says what is wrong in the last iteration, or ``None``.
    """

    name: str
    advice: str
    rule: Rule


def check(advice: str) -> Callable[[Rule], Check]:
    """Make a check of a rule, whose name it takes."""
    return lambda rule: Check(rule.__name__, advice, rule)


def mean(values: np.ndarray) -> float:
    """Mean; NaN, which no comparison holds for, where nothing was logged."""
    return float(values.mean()) if len(values) else float("nan")
