"""What a conversation comes to: length, return, outcome and end, and rewards of the partner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, get_args

from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import ConversationReward, MetricResult
from rl4dialog.core.types import AGENT, Dialogue, EndedBy
from rl4dialog.scores.base import PerDialogueMetric, mean_of_known

RETURN = "conversation/return"


class ConversationMetric(PerDialogueMetric):
    """Turns, words, return, outcome and end of each conversation, without the utterances of its sample.

    ``turns`` are utterances of the agent, ``words`` the mean number of words in one of them, split at whitespace, and
    ``return`` is the sum of their rewards, left out if the run does not score conversations, and ``return_se`` is the
    standard error of its mean. Each key of the partner's outcome, such as ``success``, is averaged over the
    conversations that have it; one with the name of another key is left out. ``ended_by_agent``, ``ended_by_partner``,
    ``ended_by_max_turns`` and ``ended_by_length`` are shares of the conversations whose end is known.
    """

    def compute(self, dialogues: list[Dialogue], model: Any = None, split_name: str | None = None) -> MetricResult:
        found = super().compute(dialogues, model, split_name)
        of_each = found.get(RETURN, (None, 0.0))[0]
        known = [value for value in of_each or () if not math.isnan(value)]
        if len(known) > 1:
            found[f"{RETURN}_se"] = None, statistics.stdev(known) / math.sqrt(len(known))
        return found

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        utterances = [dialogue.texts(AGENT) for dialogue in dialogues]
        scores = {
            "turns": [float(len(texts)) for texts in utterances],
            "words": [mean_of_known([len(text.split()) for text in texts]) for texts in utterances],
            "return": [float(sum(turn.reward for turn in dialogue.said)) for dialogue in dialogues],
        }
        for cause in get_args(EndedBy):
            ends = (dialogue.ended_by for dialogue in dialogues)
            scores[f"ended_by_{cause}"] = [math.nan if end is None else float(end == cause) for end in ends]
        for key in dict.fromkeys(key for dialogue in dialogues for key in dialogue.outcome):
            scores.setdefault(key, [float(dialogue.outcome.get(key, math.nan)) for dialogue in dialogues])
        if all(map(math.isnan, scores["return"])):
            del scores["return"]
        return {f"conversation/{key}": values for key, values in scores.items()}


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
