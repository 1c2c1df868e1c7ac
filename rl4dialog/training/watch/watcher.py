"""All checks after every iteration; trouble is told when it begins, and not again while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.training.watch import divergence, learning, replies
from rl4dialog.training.watch.check import History, RunFacts

CHECKS = (*divergence.CHECKS, *replies.CHECKS, *learning.CHECKS)

# Trouble that was away for so many iterations is told again when it is back; less, and a value near a threshold would
# be told again and again.
QUIET_ITERATIONS = 10


@dataclass(frozen=True)
class Trouble:
    """What a check found when it began: the check's name, what is wrong, and what to do."""

    iteration: int
    name: str
    message: str
    advice: str


class Watcher:
    """Looks at the history of a run.

    What it says depends on the records alone, so that a run which is continued says nothing twice.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts, self._history = facts, History()
        self._last_seen: dict[str, int] = {}

    def observe(self, record: Mapping[str, Any]) -> list[Trouble]:
        """Look at the next iteration.

        Args:
            record: What was logged of its rollout and its training, and its number as ``iteration``.

        Returns:
            The trouble that begins with it.
        """
        self._history.append(record)
        iteration = int(record["iteration"])
        begun = []
        for check in CHECKS:
            message = check.rule(self._history, self._facts)
            if message is None:
                continue
            last = self._last_seen.get(check.name)
            self._last_seen[check.name] = iteration
            if last is None or iteration - last > QUIET_ITERATIONS:
                begun.append(Trouble(iteration, check.name, message, check.advice))
        return begun
