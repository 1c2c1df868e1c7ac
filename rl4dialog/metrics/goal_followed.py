"""Share of replies that follow their goal."""

from __future__ import annotations

import math
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, meta_data_there
from rl4dialog.metrics.per_dialogue_metric import mean_of_known
from rl4dialog.tasks.turn_goals.goals import SMALL_TALK_GOAL, GoalChoice, chosen_goals, follows


class GoalFollowedMetric(BaseMetric):
    """Share of replies that follow the goal in their prompt, by its words.

    The goal of a reply is that with most words in its last question or, without one, in its last sentence. Replies
    whose sample has the goal ``None`` do not count.

    Args:
        goals: The goals: the id of a set, or a list, as in ``env.args.goals`` of ``turn_goals``.

    Raises:
        ConfigError: If a goal is unknown.
        DataError: If the samples have no goals, or another one.
    """

    def __init__(self, goals: GoalChoice = "get_acquainted") -> None:
        self._goals = chosen_goals(goals, "metric 'goal_followed': goals")

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        infos = meta_infos if meta_infos is not None else [{} for _ in generated_texts]
        scores = [self._score(text, info or {}) for text, info in zip(generated_texts, infos, strict=True)]
        return {"goal_followed": (scores, mean_of_known(scores))}

    def _score(self, text: str, info: dict[str, Any]) -> float:
        if "goal" not in info:
            raise DataError(
                f"metric 'goal_followed' needs samples with meta_data['goal'], which get_acquainted provides with "
                f"goals_in_prompt: true; one has {meta_data_there(info, 'goal')}"
            )
        if info["goal"] is None:
            return math.nan
        named = [goal for goal in (*self._goals, SMALL_TALK_GOAL) if goal.name == info["goal"]]
        if not named:
            known = ", ".join(goal.name for goal in self._goals)
            raise DataError(f"metric 'goal_followed': a sample has the goal {info['goal']!r}, not one of {known}")
        return float(follows(text, named[0], self._goals))
