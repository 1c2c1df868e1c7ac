"""Agents that need no training: floor and ceiling of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rl4dialog.rollouts.turn_goals.players import PLAYERS
from rl4dialog.rollouts.turn_goals.vec_env import TurnGoalVecEnv

RULE = "rule"


class RulePlayer:
    """A policy of the environments themselves, in place of an algorithm.

    Args:
        envs: Environments with a method ``rule_action``, or with that of another player; see `player_names`.
        name: The player.
    """

    def __init__(self, envs: VecEnv, name: str = RULE) -> None:
        self._envs, self._method, self.action_space = envs, f"{name}_action", envs.action_space

    def predict(self, observation: Any, state: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Choose the player's action in each environment, whatever is observed."""
        del observation, args, kwargs
        return np.array(self._envs.env_method(self._method)), state


def player_names(envs: VecEnv) -> tuple[str, ...]:
    """Policies that environments have themselves."""
    if isinstance(envs, TurnGoalVecEnv):
        return PLAYERS
    assert isinstance(envs, DummyVecEnv)
    return (RULE,) if envs.envs[0].has_wrapper_attr("rule_action") else ()
