"""Task-oriented dialogue as a decision process: the agent chooses dialogue acts, and a simulated user answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl4dialog.catalog import TaskRegistry
from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct, delexicalized
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.convlab_outcome import ConvLabOutcome, convlab_outcome_of
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome, outcome_of
from rl4dialog.tasks.dialogue_acts.task_rewards import TaskReward, TaskTurn, TurnReward
from rl4dialog.tasks.dialogue_acts.vectorizer import DEFAULT_BLOCKS, ActVectorizer
from rl4dialog.tasks.dialogue_acts.world import World


@functools.cache
def _world(id: str, args: str) -> World:
    """Read a world once per process."""
    given = json.loads(args)
    TaskRegistry.check(id, given, "task.args")
    return TaskRegistry.resolve(id)(**given)


class DialogueActEnv(gym.Env[NDArray[np.int8], NDArray[np.int8]]):
    """Dialogues with a simulated user who has a goal.

    A step is a turn of the agent: it says the acts whose bits are set, and the user answers. Observations are those of
    `ActVectorizer`, actions a bit per delexicalized act of the agent (both ``MultiBinary``).

    An episode ends when the user leaves, or after `max_turns`. The last turn is a rule of the task and visible in the
    observation, so it terminates the episode; with ``turn_limit: truncates`` it truncates it, and an algorithm
    bootstraps from the value of the state after it.

    The last ``info`` of an episode has ``is_success`` and ``outcome``, numbers by name.

    Args:
        task: The world: ``id`` and ``args`` of an entry of the task registry.
        split: Split of the goals.
        max_turns: Largest number of turns.
        error_rate: Share of the user's acts that the agent misunderstands.
        max_system_acts: The user hears at most this number of acts a turn. Of more, that many are drawn at random, and
            ``info["unheard_acts"]`` counts the others. Default: the corpus's 99th percentile.
        user: Arguments of `AgendaUser`: ``max_acts`` and ``patience``.
        reward: Reward of a turn.
        blocks: Blocks of an observation, or ``convlab2`` for those of ConvLab-2.
        turn_limit: What the limit of turns does to an episode.
        convlab2: Whether the numbers of the outcome include those of ConvLab-2's rules.

    Raises:
        ConfigError: If an argument does not fit.
        DataError: If the files of the world are missing or malformed.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        split: str = "train",
        max_turns: int = 20,
        error_rate: float = 0.0,
        max_system_acts: int | None = None,
        user: Mapping[str, Any] | None = None,
        reward: TurnReward | None = None,
        blocks: Sequence[str] | str = DEFAULT_BLOCKS,
        turn_limit: Literal["terminates", "truncates"] = "terminates",
        convlab2: bool = False,
    ) -> None:
        self.world = world = _world(task["id"], json.dumps(task.get("args", {}), sort_keys=True))
        if split not in world.goals:
            raise ConfigError(f"split: {split!r} is unknown{nearest_hint(split, world.goals)}")
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, not {max_turns}")
        self._goals, self._max_turns, self._turn_limit = world.goals[split], max_turns, turn_limit
        self._convlab2 = convlab2
        self._max_acts = world.max_system_acts if max_system_acts is None else max_system_acts
        requestable = {name: domain.requestable for name, domain in world.ontology.domains.items()}
        self._errors = SemanticErrors(error_rate, world.values, requestable)
        self._user = AgendaUser(world.ontology, **(user or {}))
        self._reward = TaskReward() if reward is None else reward
        self._vectorizer = ActVectorizer(world.ontology, world.database, world.user_acts, world.system_acts, blocks)
        self.lexicalizer = Lexicalizer(world.ontology, world.database)
        self.observation_space = gym.spaces.MultiBinary(len(self._vectorizer.layout()))
        self.action_space = gym.spaces.MultiBinary(len(world.system_acts))
        self._silence = np.zeros(len(world.system_acts), np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int8], dict[str, Any]]:
        """Begin a dialogue.

        Args:
            seed: Seed of the environment's generator.
            options: ``{"goal": goal}`` or ``{"goal_index": i}`` selects the goal; otherwise it is drawn.
        """
        super().reset(seed=seed)
        self._goal = self._chosen_goal(options or {})
        self.belief = BeliefState(self.world.ontology)
        self._exchanges: list[Exchange] = []
        self._last_action = self._silence
        self._hear(self._user.reset(self._goal, self.np_random))
        return self._observation(), {"goal": self._goal.id}

    def step(self, action: NDArray[np.int8]) -> tuple[NDArray[np.int8], float, bool, bool, dict[str, Any]]:
        chosen = self.world.system_acts.decode(action)
        heard = chosen
        if len(chosen) > self._max_acts:
            kept = self.np_random.choice(len(chosen), self._max_acts, replace=False)
            heard = [chosen[i] for i in sorted(kept)]
        said = self.lexicalizer.say(heard, self.belief, self._goal)
        self.belief.say(said.acts)
        exchange = Exchange(
            tuple(self._user_acts), tuple(self.heard), tuple(chosen), tuple(said.acts), tuple(said.bookings)
        )
        self._exchanges.append(exchange)
        self._last_action = action
        self._hear(self._user.reply(said.acts))
        is_last = len(self._exchanges) >= self._max_turns and not self._user.is_over
        is_over = self._user.is_over or is_last
        info: dict[str, Any] = {"unheard_acts": len(chosen) - len(heard), "unsayable_acts": said.n_unsayable}
        outcome = self.outcome() if is_over else None
        reward = float(self._reward(TaskTurn(exchange, outcome, self.convlab_outcome)))
        if outcome is not None:
            info["is_success"] = outcome.success
            info["outcome"] = {**outcome.numbers(), **(self.convlab_outcome().numbers() if self._convlab2 else {})}
        truncated = is_last and self._turn_limit == "truncates"
        return self._observation(), reward, is_over and not truncated, truncated, info

    def outcome(self) -> Outcome:
        """Outcome of the dialogue so far."""
        world = self.world
        return outcome_of(self._goal, self._exchanges, self._user.is_complete, world.ontology, world.database)

    def convlab_outcome(self) -> ConvLabOutcome:
        """Outcome of the dialogue so far, by ConvLab-2's rules."""
        ontology, database = self.world.ontology, self.world.database
        complete = self._user.is_complete
        return convlab_outcome_of(self._goal, self._exchanges, complete, ontology, database, self._user_acts)

    def _chosen_goal(self, options: Mapping[str, Any]) -> Goal:
        goal = options.get("goal")
        if isinstance(goal, Goal):
            return goal
        if goal is not None:
            raise ConfigError(f"reset: options['goal'] must be a Goal, not {shown(goal)}")
        index = options.get("goal_index")
        return self._goals[int(self.np_random.integers(len(self._goals))) if index is None else index]

    def _hear(self, acts: list[DialogueAct]) -> None:
        """Take the user's utterance."""
        self._user_acts = acts
        self.heard = self._errors.understood(acts, self.np_random)
        self.belief.hear(self.heard)

    def _observation(self) -> NDArray[np.int8]:
        progress = min(len(self._exchanges), self._max_turns - 1) / self._max_turns
        return self._vectorizer.observation(delexicalized(self.heard), self._last_action, self.belief, progress)
