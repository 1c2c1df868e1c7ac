"""Agents that need no training: floor and ceiling of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv

RULE = "rule"


class RulePlayer:
    """The rule policy of the environments, in place of an algorithm.

    Args:
        envs: Environments with a method ``rule_action``; see `has_rule_player`.
    """

    def __init__(self, envs: DummyVecEnv) -> None:
        self._envs, self.action_space = envs, envs.action_space

    def predict(self, observation: Any, state: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Choose the rule policy's action in each environment, whatever is observed."""
        del observation, args, kwargs
        return np.array(self._envs.env_method("rule_action")), state


def has_rule_player(envs: DummyVecEnv) -> bool:
    """Whether environments have a rule policy."""
    return envs.envs[0].has_wrapper_attr("rule_action")
