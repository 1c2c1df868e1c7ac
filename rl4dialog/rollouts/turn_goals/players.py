"""Agents of `turn_goals` that need no training, and the search for a fixed order of goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl4dialog.rollouts.turn_goals.vec_env import TurnGoalVecEnv

PLAYERS = ("random", "round_robin", "best_order")
"""Agents that need no training: any goal; one goal after the other, from a random one on; the best fixed order."""


def greedy_order(env: TurnGoalVecEnv) -> list[int]:
    """Find a fixed order of goals: in each turn, the one with the highest mean reward after those before it.

    All goals of a turn are compared in the same conversations, one for each that the environment holds.

    Args:
        env: Conversations of the train split.
    """
    order: list[int] = []
    env.reset()
    for _ in range(env.max_turns):
        states = env.env_method("state_dict")
        rewards = [_mean_reward(env, states, goal) for goal in range(len(env.goals))]
        order.append(int(np.argmax(rewards)))
        _mean_reward(env, states, order[-1])
    return order


def _mean_reward(env: TurnGoalVecEnv, states: Sequence[dict[str, Any]], goal: int) -> float:
    """Continue conversations with a goal, from where they were."""
    for i, state in enumerate(states):
        env.env_method("load_state_dict", state, indices=[i])
    return float(env.step(np.full(env.num_envs, goal))[1].mean())
