"""Agents for a task, in dialogue acts or in words, that people talk to in words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import MultiBinary
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.dialogue_acts import DialogueActEnv
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.turn_level_agent import TurnLevelAgent
from rl4dialog.tasks.dialogue_acts.acts import BYE, GENERAL, INFORM, DialogueAct
from rl4dialog.tasks.dialogue_acts.dialogue import BeliefState, Lexicalizer, TaskDialogue
from rl4dialog.tasks.dialogue_acts.goals import Goal, goal_text
from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome, outcome_of
from rl4dialog.tasks.dialogue_acts.placeholders import ReplyReader
from rl4dialog.tasks.dialogue_acts.text_task import user_text
from rl4dialog.tasks.dialogue_acts.world import World
from rl4dialog.training.building.texts import task_world

_NO_GOAL = Goal("", {})


@dataclass(frozen=True)
class TaskReply:
    """A turn of the agent."""

    # Acts in what the person said; empty if nothing was understood, and then the agent says nothing.
    understood: list[DialogueAct]
    acts: tuple[DialogueAct, ...]
    text: str  # the same in words; empty if the agent says nothing


class TaskAgent(ABC):
    """An agent in a conversation with a person, about a goal or without one."""

    def __init__(self, name: str, world: World, seed: int | None = None) -> None:
        self.name, self.world = name, world
        self._rng = np.random.default_rng(seed)
        self.reset()

    @property
    def domains(self) -> tuple[str, ...]:
        """What the agent can talk about."""
        return tuple(self.world.ontology.domains)

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""
        self._goal, self._has_begun, self._has_listened = _NO_GOAL, False, False

    def draw_goal(self) -> str:
        """Begin a new dialogue about a test goal, and return the goal in words."""
        self.reset()
        goals = self.world.goals["test"]
        self._goal = goals[int(self._rng.integers(len(goals)))]
        return goal_text(self._goal.domains, self.world.templates)

    def reply(self, text: str) -> TaskReply:
        """Reply to what a person said."""
        if not self._has_begun:
            self._begin(self._goal)
            self._has_begun = True
        understood = self._understand(text)
        if not understood:
            return TaskReply([], (), "")
        if any(act.intent == BYE for act in understood):  # a simulated user's goodbye ends the dialogue, too
            goodbye = DialogueAct(BYE, GENERAL)
            return TaskReply(understood, (goodbye,), self.world.templates.render([goodbye], "agent"))
        exchange = self._answer(understood)
        self._has_listened = True
        return TaskReply(
            understood, exchange.said, exchange.text or self.world.templates.render(exchange.said, "agent")
        )

    def outcome(self) -> Outcome | None:
        """Outcome of the dialogue so far; ``None`` without a goal or a dialogue."""
        if not self._has_listened or self._goal is _NO_GOAL:
            return None
        return outcome_of(self._goal, self._exchanges, True, self.world.database)

    @property
    @abstractmethod
    def _exchanges(self) -> Sequence[Exchange]:
        """Turns of the dialogue."""

    @abstractmethod
    def _begin(self, goal: Goal) -> None:
        """Begin a dialogue."""

    @abstractmethod
    def _understand(self, text: str) -> list[DialogueAct]:
        """Acts in what the person said."""

    @abstractmethod
    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        """Answer what was understood."""


class WordsAgent(TaskAgent):
    """A language model that writes placeholders, which the person reads as values.

    What the person says is understood by the world's templates, without semantic errors. The model reads it in the
    words of templates, with belief and database counts, as in training.
    """

    def __init__(self, loaded: LoadedPolicy, name: str, seed: int | None = None) -> None:
        world = task_world(loaded.config.task)
        if world is None:
            raise ConfigError(f"{name} was not trained for a task")
        self._loaded, self._seed = loaded, seed
        args = loaded.config.env.args if loaded.config.env is not None else None
        self._n_shown = args.context_turns if args is not None else None
        super().__init__(name, world(), seed)
        self._lexicalizer = Lexicalizer(self.world.database)
        self._reader = ReplyReader(self.world.templates)

    @property
    def _exchanges(self) -> Sequence[Exchange]:
        return self._dialogue.exchanges

    def _begin(self, goal: Goal) -> None:
        self._dialogue = TaskDialogue(goal, BeliefState(self.world.ontology), self._lexicalizer, self._rng)
        self._history: list[str] = []

    def _understand(self, text: str) -> list[DialogueAct]:
        active = [DialogueAct(INFORM, self._dialogue.belief.active)] if self._exchanges else []
        said = self._exchanges[-1].said if self._exchanges else ()
        return self.world.templates.parse(text, [*active, *said])

    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        dialogue = self._dialogue
        dialogue.listen(understood)
        told = user_text(understood, dialogue.belief, self.world)
        shown = self._history if self._n_shown is None else self._history[len(self._history) - self._n_shown + 1 :]
        seed = None if self._seed is None else self._seed + len(self._history)
        reply = self._loaded.chat(told, shown, seed=seed)
        self._history += [told, reply]
        dialogue.say_text(reply, self._reader)
        return dialogue.exchanges[-1]


class ActAgent(TaskAgent):
    """A policy in a conversation with a person.

    What the person says is understood by the run's ``nlu``, or the world's templates, without semantic errors. Where
    the policy would say nothing, because no single act is more likely than not, it says the most likely one.
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
