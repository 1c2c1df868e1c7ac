"""Runs all checks after every iteration. A problem is reported once when it starts, not while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.training.watch import conversations, divergence, learning, replies, values
from rl4dialog.training.watch.check import History, RunFacts

CHECKS = (*divergence.CHECKS, *replies.CHECKS, *conversations.CHECKS, *learning.CHECKS, *values.CHECKS)

# A problem is reported again only after it was absent for this many iterations. Otherwise a value near a threshold
# would be reported repeatedly.
QUIET_ITERATIONS = 10


@dataclass(frozen=True)
class Trouble:
    """A finding at the start of a problem: the check's name, a description and advice."""

    iteration: int
    name: str
    message: str
    advice: str


class Watcher:
    """Applies the checks to the history of a run.

    Its reports depend on the records only, so a resumed run does not repeat any.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts, self._history = facts, History()
        self._last_seen: dict[str, int] = {}

    def observe(self, record: Mapping[str, Any]) -> list[Trouble]:
        """Check the next iteration.

        Args:
            record: Logged values of the rollout and the training, with the number as ``iteration``.

        Returns:
            Problems that start in this iteration.
        """
        self._history.append(record)
        iteration = int(record["iteration"])
        started = []
        for check in CHECKS:
            message = check.rule(self._history, self._facts)
            if message is None:
                continue
            last = self._last_seen.get(check.name)
            self._last_seen[check.name] = iteration
            if last is None or iteration - last > QUIET_ITERATIONS:
                started.append(Trouble(iteration, check.name, message, check.advice))
        return started
