"""Rewards of a turn in a task with a goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.dialogue_acts.convlab_outcome import ConvLabOutcome
from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome


@dataclass(frozen=True)
class TaskTurn:
    """What a reward sees.

    Attributes:
        exchange: The turn.
        outcome: Outcome of the dialogue; ``None`` before its last turn.
        convlab: Judges the dialogue so far, with the user's answer, by ConvLab-2's rules.
    """

    exchange: Exchange
    outcome: Outcome | None
    convlab: Callable[[], ConvLabOutcome] | None = None


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
        if success < failure or success == failure == turn == 0:
            raise ConfigError(f"reward 'task_reward': success ({success:g}) must be above failure ({failure:g})")
        self._success, self._failure, self._turn = success, failure, turn

    def __call__(self, turn: TaskTurn) -> float:
        if turn.outcome is None:
            return self._turn
        return self._turn + (self._success if turn.outcome.success else self._failure)


class ConvLab2Reward:
    """Reward of ConvLab-2, by its own rules of success.

    Every turn pays one of three amounts, so an agent can earn more by staying in a domain that has succeeded.

    Args:
        success: Paid for every turn while the whole dialogue is a success.
        domain: Paid for every other turn while the domain that was talked about last is a success.
        turn: Paid for any other turn.
    """

    def __init__(self, success: float = 40.0, domain: float = 5.0, turn: float = -1.0) -> None:
        self._success, self._domain, self._turn = success, domain, turn

    def __call__(self, turn: TaskTurn) -> float:
        if turn.convlab is None:
            raise ValueError("ConvLab2Reward needs a TaskTurn with 'convlab'")
        found = turn.convlab()
        if found.success:
            return self._success
        current = found.domains.get(found.active)
        return self._domain if current is not None and current.success else self._turn
