"""Rewards of a turn in a task with a goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome


@dataclass(frozen=True)
class TaskTurn:
    """What a reward sees.

    Attributes:
        exchange: The turn.
        outcome: Outcome of the dialogue; ``None`` before its last turn.
    """

    exchange: Exchange
    outcome: Outcome | None


TurnReward = Callable[[TaskTurn], float]


class TaskReward:
    """Pays for success at the end, and charges every turn.

    The defaults are ConvLab-3's 80, -40 and -1, divided by 80.

    Args:
        success: Paid at the end of a successful dialogue.
        failure: Paid at the end of any other.
        turn: Paid for every turn.
    """

    def __init__(self, success: float = 1.0, failure: float = -0.5, turn: float = -0.0125) -> None:
        self._success, self._failure, self._turn = success, failure, turn

    def __call__(self, turn: TaskTurn) -> float:
        if turn.outcome is None:
            return self._turn
        return self._turn + (self._success if turn.outcome.success else self._failure)
