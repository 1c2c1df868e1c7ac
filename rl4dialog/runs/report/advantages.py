"""Utterances that the values of the policy find best and worst."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rl4dialog.runs.report.predictions import Predictions

N_SHOWN = 10


@dataclass(frozen=True)
class JudgedUtterance:
    """An utterance of the agent.

    Attributes:
        advantage: Mean advantage of its tokens.
        heard: What was said before it.
        text: The utterance.
        sample_id: Id of the sample of its conversation.
    """

    advantage: float
    heard: str
    text: str
    sample_id: str


def extreme_utterances(predictions: Predictions | None) -> dict[str, list[JudgedUtterance]]:
    """Return the utterances of the highest and of the lowest advantage by title, the most extreme first.

    An utterance that was said several times after the same one is shown once. No utterance is in both lists.

    Args:
        predictions: An evaluation; without values, or with a single utterance, nothing is returned.
    """
    if predictions is None or not predictions.advantages:
        return {}
    found: dict[tuple[str, str], JudgedUtterance] = {}
    for row, advantages in enumerate(predictions.advantages):
        conversation, id = predictions.conversations[row], predictions.sample_ids[row]
        said = [(predictions.utterances[row][-1] if predictions.utterances[row] else "", predictions.replies[row])]
        if conversation is not None:
            turns = conversation.turns
            said = [(turns[i - 1].text if i else "", turns[i].text) for i in conversation.agent_turns]
        for (heard, text), advantage in zip(said, advantages, strict=False):  # a failed utterance has none
            if math.isfinite(advantage):
                found.setdefault((heard, text), JudgedUtterance(advantage, heard, text, id))
    ranked = sorted(found.values(), key=lambda each: -each.advantage)
    n = min(N_SHOWN, len(ranked) // 2)
    return {"Highest advantage": ranked[:n], "Lowest advantage": ranked[::-1][:n]} if n else {}
