"""Length, return, outcome and end of conversations."""

from __future__ import annotations

import math
import statistics
from typing import Any, get_args

from rl4dialog.core.protocols import MetricResult
from rl4dialog.core.types import AGENT, Dialogue, EndedBy
from rl4dialog.metrics.per_dialogue_metric import PerDialogueMetric, mean_of_known

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
            scores[f"ended_by_{cause}"] = [_is_cause(dialogue, cause) for dialogue in dialogues]
        for key in dict.fromkeys(key for dialogue in dialogues for key in dialogue.outcome):
            scores.setdefault(key, [float(dialogue.outcome.get(key, math.nan)) for dialogue in dialogues])
        if all(map(math.isnan, scores["return"])):
            del scores["return"]
        return {f"conversation/{key}": values for key, values in scores.items()}


def _is_cause(dialogue: Dialogue, cause: str) -> float:
    return math.nan if dialogue.ended_by is None else float(dialogue.ended_by == cause)
