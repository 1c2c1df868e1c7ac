"""Metrics and rewards of the tasks comment_reply and random_walks."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import RewardFunction
from rl4dialog.features.offline.tasks.comment_reply import MILD, POLITE, STRONG, rudeness_of
from rl4dialog.features.offline.tasks.random_walks import WalkTask
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, ReplyMetric


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
