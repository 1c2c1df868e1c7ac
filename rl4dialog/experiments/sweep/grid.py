"""All combinations of given values, one trial each. Needs no further package."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl4dialog.core.errors import ConfigError
from rl4dialog.experiments.sweep.space import Dimension, Values, combinations
from rl4dialog.experiments.sweep.trials import Trial, TrialResult

_MAX_NAME = 150


class Grid:
    """Trials of all combinations. Runs are named by their values, so a repeated sweep continues them.

    Args:
        dimensions: Choices by key.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self._trials = [Trial(_name(values), values) for values in combinations(dimensions)]
        names = [trial.name for trial in self._trials]
        if len({*names}) < len(names) or max(map(len, names)) > _MAX_NAME:
            raise ConfigError("--grid: these values give no distinct, short folder names; use --search with choice")
        self._waiting = iter(self._trials)
        self._results: dict[str, TrialResult] = {}

    def next(self) -> Trial | None:
        return next(self._waiting, None)

    def report(self, trial: Trial, iteration: int, value: float) -> bool:
        return False

    def finish(self, trial: Trial, result: TrialResult) -> None:
        self._results[trial.name] = result

    def results(self) -> list[TrialResult]:
        return [self._results[trial.name] for trial in self._trials if trial.name in self._results]


def _name(values: Values) -> str:
    parts = (f"{key.rsplit('.', 1)[-1]}_{value}" for key, value in values.items())
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", "_".join(parts).replace('"', ""))
