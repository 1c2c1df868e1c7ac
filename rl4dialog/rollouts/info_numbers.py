"""Logging of numbers in the environments' infos (OpenRL's ``vec_info``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError, nearest_hint

PREFIX = "rollout/info/"


class InfoNumbers:
    """Collects numbers by name, to be averaged over an iteration.

    Args:
        names: Names of numbers in the infos or in their ``meta_info``.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: set[str] = set()

    def add(self, infos: Iterable[Mapping[str, Any]], series: dict[str, list[float]]) -> None:
        """Append the numbers of a batch of infos to the series ``rollout/info/<name>``."""
        if not self._names:
            return
        for info in infos:
            numbers = numbers_in(info)
            self._known.update(numbers)
            for name in self._names:
                if name in numbers:
                    series[PREFIX + name].append(numbers[name])

    def check(self, found: Mapping[str, float], iteration: int) -> None:
        """Check after the run's first iteration that each name was found.

        Args:
            found: Means of the iteration, over all processes.
            iteration: Iteration number, from 1. Names may be absent in later iterations.
        """
        if iteration > 1:
            return
        for name in self._names:
            if PREFIX + name not in found:
                raise ConfigError(
                    f"logging.log_infos: the environments' infos have no number {name!r}"
                    f"{nearest_hint(name, self._known)} (they have: {', '.join(sorted(self._known)) or 'none'})"
                )


def numbers_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers of an info by name, including booleans. Numbers in its ``meta_info`` come last."""
    found: dict[str, float] = {}
    for source in (info.get("meta_info") or {}, info):
        for name, value in source.items():
            if isinstance(value, (bool, int, float, np.number, np.bool_)) and math.isfinite(value):
                found[str(name)] = float(value)
    return found
