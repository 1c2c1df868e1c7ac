"""Agents of `turn_goals` that need no training, and the search for a fixed order of goals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4dialog.rollouts.turn_goals.vec_env import TurnGoalVecEnv

PLAYERS = ("random", "round_robin", "best_order")
"""Agents that need no training: any goal; one goal after the other, from a random one on; the best fixed order."""


def greedy_order(env: TurnGoalVecEnv, max_turns: int, n_conversations: int) -> list[int]:
    """Find a fixed order of goals: in each turn, the goal with the highest mean return so far, given those before it.

    All goals are compared in conversations about the same samples.

    Args:
        env: Numbered conversations of the train split.
        max_turns: Number of turns of a conversation.
        n_conversations: Number of conversations for each comparison; at least as many as the environment holds.
    """
    order: list[int] = []
    for _ in range(max_turns):
        returns = [_mean_return(env, [*order, goal], n_conversations) for goal in range(len(env.goals))]
        order.append(int(np.argmax(returns)))
    return order


def _mean_return(env: TurnGoalVecEnv, order: Sequence[int], n_conversations: int) -> float:
    env.env_method("restart", 0, indices=[0])
    total = 0.0
    for _ in range(-(-n_conversations // env.num_envs)):
        env.reset()
        for goal in order:
            total += float(env.step(np.full(env.num_envs, goal))[1].sum())
    return total
