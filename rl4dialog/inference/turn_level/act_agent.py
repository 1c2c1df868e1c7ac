"""An agent in dialogue acts that people talk to in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import MultiBinary

from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.dialogue_acts import DialogueActEnv
from rl4dialog.inference.turn_level.loading import TurnLevelAgent
from rl4dialog.tasks.dialogue_acts.acts import BYE, GENERAL, DialogueAct
from rl4dialog.tasks.dialogue_acts.goals import Goal, goal_text
from rl4dialog.tasks.dialogue_acts.outcome import Outcome, outcome_of

_NO_GOAL = Goal("", {})


@dataclass(frozen=True)
class ActReply:
    """A turn of the agent.

    Attributes:
        understood: Acts in what the person said; empty if nothing was understood, and then the agent says nothing.
        acts: Acts of the agent.
        text: The same in words; empty if the agent says nothing.
    """

    understood: list[DialogueAct]
    acts: tuple[DialogueAct, ...]
    text: str


class ActAgent:
    """A policy in a conversation with a person.

    What the person says is understood by the run's ``nlu``, or the world's templates, without semantic errors. Where
    the policy would say nothing, because no single act is more likely than not, it says the most likely one.

    Args:
        agent: The policy, in an environment ``dialogue_acts``.
        seed: Seed of the goals.

    Raises:
        ConfigError: If the environment has no dialogue acts.
    """

    def __init__(self, agent: TurnLevelAgent, seed: int | None = None) -> None:
        self.name, self._agent = agent.name, agent
        envs = agent.envs("test")
        env = envs.envs[0].unwrapped
        if not isinstance(env, DialogueActEnv):
            raise ConfigError(f"env.id: {agent.config.env.id} has no dialogues, so there is nobody to chat with")
        self._env: DialogueActEnv = env
        agent.player(envs)  # an environment without a rule policy is an error now, not at the first reply
        self._rng = np.random.default_rng(seed)
        self.reset()

    @property
    def domains(self) -> tuple[str, ...]:
        """What the agent can talk about."""
        return tuple(self._env.world.ontology.domains)

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""
        self._goal, self._has_begun = _NO_GOAL, False

    def draw_goal(self) -> str:
        """Begin a new dialogue about a test goal, and return the goal in words."""
        self.reset()
        goals = self._env.world.goals["test"]
        self._goal = goals[int(self._rng.integers(len(goals)))]
        return goal_text(self._goal.domains, self._env.world.templates)

    def reply(self, text: str) -> ActReply:
        """Reply to what a person said."""
        templates = self._env.world.templates
        if not self._has_begun:
            self._env.begin(self._goal, (), [])
        understood = self._env.understand(text)
        if not understood:
            return ActReply([], (), "")
        if any(act.intent == BYE for act in understood):  # a simulated user's goodbye ends the dialogue, too
            goodbye = DialogueAct(BYE, GENERAL)
            return ActReply(understood, (goodbye,), templates.render([goodbye], "agent"))
        self._has_begun = True
        exchange, _ = self._env.speak(self._action(self._env.listen(understood, understood)))
        return ActReply(understood, exchange.said, exchange.text or templates.render(exchange.said, "agent"))

    def outcome(self) -> Outcome | None:
        """Outcome of the dialogue so far; ``None`` without a goal or a dialogue."""
        if not self._has_begun or self._goal is _NO_GOAL:
            return None
        world = self._env.world
        return outcome_of(self._goal, self._env.dialogue.exchanges, True, world.ontology, world.database)

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
