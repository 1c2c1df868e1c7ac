"""The metric of goals of single turns."""

from __future__ import annotations

import math
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import MetricResult
from rl4dialog.scores.base import Batch, TextMetric, mean_of_known, meta_data_there
from rl4dialog.tasks.turn_goals import SMALL_TALK_GOAL, GoalChoice, chosen_goals, follows


class GoalFollowedMetric(TextMetric):
    """Share of replies that follow the goal in their prompt, by its words.

    The goal of a reply is that with most words in its last question or, without one, in its last sentence. Replies
    whose sample has the goal ``None`` do not count.

    Args:
        goals: The goals: the id of a set, or a list, as in ``env.args.goals`` of ``turn_goals``.
    """

    def __init__(self, goals: GoalChoice = "get_acquainted") -> None:
        self._goals = chosen_goals(goals, "metric 'goal_followed': goals")

    def measure(self, batch: Batch) -> MetricResult:
        scores = [self._score(*each) for each in zip(batch.gen_texts, batch.meta_infos, strict=True)]
        return {"goal_followed": (scores, mean_of_known(scores))}

    def _score(self, text: str, info: dict[str, Any]) -> float:
        if "goal" not in info:
            source = "which get_acquainted provides with goals_in_prompt: true"
            there = meta_data_there(info, "goal")
            raise DataError(f"metric 'goal_followed' needs samples with meta_data['goal'], {source}; one has {there}")
        if info["goal"] is None:
            return math.nan
        named = [goal for goal in (*self._goals, SMALL_TALK_GOAL) if goal.name == info["goal"]]
        if not named:
            known = ", ".join(goal.name for goal in self._goals)
            raise DataError(f"metric 'goal_followed': a sample has the goal {info['goal']!r}, not one of {known}")
        return float(follows(text, named[0], self._goals))
