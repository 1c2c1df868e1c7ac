"""Metrics and rewards of the tasks comment_reply, random_walks and turn_goals."""

from __future__ import annotations

import math
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import MetricResult, RewardFunction
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, ReplyMetric, TextMetric, mean_of_known, meta_data_there
from rl4dialog.tasks.comment_reply import MILD, POLITE, STRONG, rudeness_of
from rl4dialog.tasks.random_walks import WalkTask
from rl4dialog.tasks.turn_goals import SMALL_TALK_GOAL, GoalChoice, chosen_goals, follows


class RudenessMetric(ReplyMetric):
    """Level of the rude words in a text, from 0 to 2, and the shares of polite, mildly and strongly rude texts.

    Exact for the words of the datapool `comment_reply`. Other rude words are not known, and an empty text is polite.
    """

    key = "rudeness/level"

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        levels = [rudeness_of(text) for text in batch.gen_texts]
        names = {"polite": POLITE, "mild": MILD, "strong": STRONG}
        return {
            "rudeness/level": [float(level) for level in levels],
            **{f"rudeness/{name}": [float(level == each) for level in levels] for name, each in names.items()},
        }


class RudenessReward(MetricReward, metric=RudenessMetric):
    """``-scale`` times the rudeness of the reply, which is 0, 1 or 2 by its words; see the metric `rudeness`.

    Args:
        scale: Cost of each level.
    """

    def __init__(self, scale: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key = {"rudeness/level": -scale}


class ShortestPathMetric(ReplyMetric):
    """Returns of walks, and their causes; needs the datapool `random_walks`.

    - ``return``: minus the number of steps to the goal; ``-max_steps`` if the walk does not reach it.
    - ``optimality``: the return on a scale on which ``-max_steps`` is 0 and the shortest path is 1.
    - ``reached``: whether the walk reached the goal.
    - ``illegal``: whether an illegal step ended the walk.
    """

    key = "shortest_path/return"

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        tasks = [WalkTask.from_meta(info, "metric 'shortest_path'") for info in batch.meta_infos]
        returns = list(map(WalkTask.return_of, tasks, batch.gen_texts))
        walks = list(map(WalkTask.read, tasks, batch.gen_texts))
        return {
            "shortest_path/return": returns,
            "shortest_path/optimality": list(map(WalkTask.optimality, tasks, returns)),
            "shortest_path/reached": [float(walk.reached) for walk in walks],
            "shortest_path/illegal": [float(walk.illegal) for walk in walks],
        }


class ShortestPathReward(RewardFunction):
    """Minus the number of steps of a walk to the goal, paid token by token; needs the datapool `random_walks`.

    Each step earns -1, on the token that completes it. An illegal step, or the end of a reply before the goal, earns
    what is missing to ``-max_steps``, the lowest return. A walk that needs all ``max_steps`` steps earns no more than
    one that fails. Words after the end of a walk earn 0.
    """

    def __call__(
        self,
        prev_observation: Any,
        action: int,
        current_observation: Any,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        task = WalkTask.from_meta(meta_info, "reward 'shortest_path'")
        now = task.return_of if done else task.return_so_far
        paid = task.return_so_far(prev_observation.context_text) if prev_observation.context_ids else 0.0
        return now(current_observation.context_text) - paid


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
