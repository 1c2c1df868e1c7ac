"""An agent in dialogue acts that people talk to in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium.spaces import MultiBinary
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.dialogue_acts import DialogueActEnv
from rl4dialog.inference.task_agent import TaskAgent
from rl4dialog.inference.turn_level.loading import TurnLevelAgent
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.outcome import Exchange


class ActAgent(TaskAgent):
    """A policy in a conversation with a person.

    What the person says is understood by the run's ``nlu``, or the world's templates, without semantic errors. Where
    the policy would say nothing, because no single act is more likely than not, it says the most likely one.

    Args:
        agent: The policy, in an environment ``dialogue_acts``.
        seed: Seed of the goals.
    """

    def __init__(self, agent: TurnLevelAgent, seed: int | None = None) -> None:
        self._agent = agent
        envs = agent.envs("test", n_envs=1)
        env = envs.envs[0].unwrapped if isinstance(envs, DummyVecEnv) else None
        if not isinstance(env, DialogueActEnv):
            raise ConfigError(f"env.id: {agent.config.env.id} has no dialogues, so there is nobody to chat with")
        self._env: DialogueActEnv = env
        agent.player(envs)  # an environment without a rule policy is an error now, not at the first reply
        super().__init__(agent.name, env.world, seed)

    @property
    def _exchanges(self) -> Sequence[Exchange]:
        return self._env.dialogue.exchanges

    def _begin(self, goal: Goal) -> None:
        self._env.begin(goal, (), [])

    def _understand(self, text: str) -> list[DialogueAct]:
        return self._env.understand(text)

    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        return self._env.speak(self._action(self._env.listen(understood, understood)))[0]

    def _action(self, observation: Any) -> Any:
        policy: Any = self._agent.policy
        if policy is None:
            return self._env.rule_action()
        masks = {"action_masks": self._env.action_masks()} if self._agent.is_masked else {}
        deterministic = self._agent.config.train_evaluation.deterministic
        action = policy.predict(observation, deterministic=deterministic, **masks)[0]
        if isinstance(self._env.action_space, MultiBinary) and not action.any():
            # No single act is more likely than not.
            with torch.no_grad():
                tensor, _ = policy.obs_to_tensor(observation)
                probs = policy.get_distribution(tensor, **masks).distribution.probs[0]
            action[int(probs.argmax())] = 1
        return action
