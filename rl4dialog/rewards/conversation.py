"""Rewards for what a conversation comes to: its outcome, and what the partner pays."""

from __future__ import annotations

from collections.abc import Mapping

from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import ConversationReward
from rl4dialog.core.types import AGENT, Dialogue


class OutcomeReward(ConversationReward):
    """The partner's account of the conversation at its end, and a constant for each turn.

    Args:
        weights: Factor of each number of the partner's outcome.
        per_turn: Reward of every turn; negative to prefer short conversations.
    """

    needs_partner = True

    def __init__(self, weights: Mapping[str, float] | None = None, per_turn: float = 0.0) -> None:
        self.weights = {"success": 1.0} if weights is None else dict(weights)
        self._per_turn = per_turn
        if not per_turn and not any(self.weights.values()):
            raise ConfigError("reward 'outcome': all weights and per_turn are 0, so the reward is always 0")

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        if not over:
            return self._per_turn
        if missing := self.weights.keys() - dialogue.outcome.keys():
            raise RewardError(
                f"the partner reported no {', '.join(map(repr, sorted(missing)))} at the end of the conversation "
                f"(it reported: {', '.join(dialogue.outcome) or 'nothing'})"
            )
        return self._per_turn + sum(weight * dialogue.outcome[name] for name, weight in self.weights.items())


class PartnerReward(ConversationReward):
    """The reward that the partner's reply carries, for the utterance that it answers."""

    needs_partner = True

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        return next(turn.paid for turn in reversed(dialogue.turns) if turn.speaker == AGENT)
