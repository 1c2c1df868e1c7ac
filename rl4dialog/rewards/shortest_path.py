"""Reward of the task random_walks, per step."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import RewardFunction
from rl4dialog.tasks.random_walks.walks import WalkTask


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
