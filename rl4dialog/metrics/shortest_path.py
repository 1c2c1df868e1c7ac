"""Measures of walks, for the task random_walks."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.tasks.random_walks.walks import WalkTask


class ShortestPathMetric(SentenceMetric):
    """Returns of walks, and their causes; needs the datapool `random_walks`.

    - ``return``: minus the number of steps to the goal; ``-max_steps`` if the walk does not reach it.
    - ``optimality``: the return on a scale on which ``-max_steps`` is 0 and the shortest path is 1.
    - ``reached``: whether the walk reached the goal.
    - ``illegal``: whether an illegal step ended the walk.
    """

    needs_references = False
    key = "shortest_path/return"

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        infos = meta_infos or [{}] * len(generated_texts)
        tasks = [WalkTask.from_meta(info, "metric 'shortest_path'") for info in infos]
        returns = [task.return_of(text) for task, text in zip(tasks, generated_texts, strict=True)]
        walks = [task.read(text) for task, text in zip(tasks, generated_texts, strict=True)]
        return {
            "shortest_path/return": returns,
            "shortest_path/optimality": [_optimality(*pair) for pair in zip(tasks, returns, strict=True)],
            "shortest_path/reached": [float(walk.reached) for walk in walks],
            "shortest_path/illegal": [float(walk.illegal) for walk in walks],
        }


def _optimality(task: WalkTask, walk_return: float) -> float:
    lowest = -task.graph.max_steps
    return (walk_return - lowest) / (task.optimal_return() - lowest)
