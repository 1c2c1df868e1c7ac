"""Task-oriented dialogue as a decision process: the agent chooses dialogue acts, and a simulated user answers."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.arguments import Count, ErrorRate
from rl4dialog.core.errors import ConfigError, DataError, RewardError, shown
from rl4dialog.data.pool import built_world
from rl4dialog.features.dialogue_acts.tasks import outcome as outcomes
from rl4dialog.features.dialogue_acts.tasks.acts import INFORM, DialogueAct, composite_acts, delexicalized
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser, SemanticErrors, UserSettings
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState, Exchange, Lexicalizer, RulePolicy, TaskDialogue
from rl4dialog.features.dialogue_acts.tasks.goals import Goal
from rl4dialog.features.dialogue_acts.tasks.pipeline import Nlg, Nlu, TrackedBelief, Tracker, as_acts
from rl4dialog.features.dialogue_acts.tasks.vectorizer import DEFAULT_BLOCKS, ActVectorizer
from rl4dialog.features.dialogue_acts.tasks.world import World

_logger = logging.getLogger(__name__)


@functools.cache
def _composites(task: Callable[..., World], args: str, size: int) -> NDArray[np.int8]:
    """The most frequent combinations of acts of a world, and each act alone, as bits. Shape (combinations, acts)."""
    world = built_world(task, args)
    turns = (turn.system for dialogue in world.dialogues["train"] for turn in dialogue.turns)
    alone = ((act,) for act in world.system_acts.acts)
    chosen = dict.fromkeys([*composite_acts(turns, world.system_acts, size), *alone])
    return np.stack([world.system_acts.encode(acts) for acts in chosen])


_LOST = "%s: %d of the %d %s of the corpus are not imitated, because no action has this %s; %s to keep them"


class DialogueActEnv(gym.Env[NDArray[np.int8], Any]):
    """Dialogues with a simulated user who has a goal.

    A step is a turn of the agent: it says the chosen acts, and the user answers. Observations (``MultiBinary``) are
    those of `ActVectorizer`. Actions are a bit per delexicalized act of the agent (``MultiBinary``), or the number of a
    frequent combination of acts (``Discrete``), for algorithms such as DQN.

    An episode ends when the user leaves, or after `max_turns`. The last turn is a rule of the task and visible in the
    observation, so it terminates the episode; with ``turn_limit: truncates``, algorithms bootstrap from its value.

    The last ``info`` of an episode has ``is_success`` and ``outcome``, numbers by name.

    Args:
        task: What builds the world, such as `camrest`. It is called once per process.
        task_args: Its arguments, of plain JSON types.
        max_turns: Largest number of turns.
        error_rate: Share of the user's acts that the agent misunderstands.
        max_system_acts: The user hears at most this number of acts a turn. Of more, that many are drawn at random, and
            ``info["unheard_acts"]`` counts the others. Default: the corpus's 99th percentile.
        user: Arguments of `AgendaUser`: ``max_acts`` and ``patience``.
        blocks: Blocks of an observation, or ``convlab2`` for those of ConvLab-2.
        action: ``multi_binary`` for a bit per act, ``composite`` for combinations of acts.
        n_composites: Maximum number of combinations, the most frequent ones of training, apart from each act alone.
        turn_limit: What the limit of turns does to an episode.
        convlab2: Whether the numbers of the outcome include those of ConvLab-2's rules.
        goals: Goals of the split ``train``: those of the corpus, or new ones, drawn from the statistics of the corpus's
            and checked against the database. Those of ``val`` and ``test`` are the corpus's, and never drawn.
        nlu: What builds the agent's understanding, from the world. With it, the user speaks in the words of templates.
        tracker: What builds the agent's tracker.
        nlg: What builds the agent's words. With it, the user understands them by templates.
        goal_split: Split of the goals.
        turn_reward: Reward of a turn.
        keeps_transcripts: Whether the last ``info`` of an episode has the whole dialogue as ``transcript``; see
            `rl4dialog.features.dialogue_acts.tasks.outcome.transcript`.
    """

    def __init__(
        self,
        task: Callable[..., World],
        task_args: Mapping[str, Any] | None = None,
        max_turns: Count = 20,
        error_rate: ErrorRate = 0.0,
        max_system_acts: Count | None = None,
        user: UserSettings | None = None,
        blocks: Sequence[str] | str = DEFAULT_BLOCKS,
        action: Literal["multi_binary", "composite"] = "multi_binary",
        n_composites: Count = 120,
        turn_limit: Literal["terminates", "truncates"] = "terminates",
        convlab2: bool = False,
        goals: Literal["corpus", "statistics"] = "corpus",
        nlu: Callable[..., Nlu] | None = None,
        tracker: Callable[..., Tracker] | None = None,
        nlg: Callable[..., Nlg] | None = None,
        goal_split: str = "train",
        turn_reward: outcomes.TurnReward | None = None,
        keeps_transcripts: bool = False,
    ) -> None:
        args = json.dumps(dict(task_args or {}), sort_keys=True)
        self.world: World = built_world(task, args)
        world = self.world
        self._goals, self._max_turns, self._turn_limit = world.goals[goal_split], max_turns, turn_limit
        self._statistics = world.goal_statistics if goals == "statistics" and goal_split == "train" else None
        self._keeps_transcripts, self._convlab2 = keeps_transcripts, convlab2
        self._max_acts = world.max_system_acts if max_system_acts is None else max_system_acts
        self._errors = SemanticErrors(error_rate, world.ontology, world.values)
        self._user = AgendaUser(world.ontology, places=world.places, **dict[str, Any](user or {}))
        self._nlu = None if nlu is None else nlu(world=world)
        self._tracker = None if tracker is None else tracker(world=world)
        self._nlg = None if nlg is None else nlg(world=world)
        self._reward = outcomes.TaskReward() if turn_reward is None else turn_reward
        self._vectorizer = ActVectorizer(world, blocks)
        self.lexicalizer = Lexicalizer(world.database)
        self.observation_space = gym.spaces.MultiBinary(len(self._vectorizer.layout))
        self._composites = _composites(task, args, n_composites) if action == "composite" else None
        self.action_space: gym.Space[Any] = (
            gym.spaces.MultiBinary(len(world.system_acts))
            if self._composites is None
            else gym.spaces.Discrete(len(self._composites))
        )
        self._rule_policy = RulePolicy(self.lexicalizer, told=3, vocabulary=world.system_acts)
        self._silence = np.zeros(len(world.system_acts), np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int8], dict[str, Any]]:
        """Begin a dialogue.

        ``options``: ``{"goal": goal}`` or ``{"goal_index": i}``, a number in the corpus, selects the goal, which is
        drawn otherwise. The info has its id and, with ``goals: statistics``, how often it was ``redrawn``.
        """
        super().reset(seed=seed)
        info: dict[str, Any] = {}
        chosen = options or {}
        if self._statistics is None or chosen.keys() & {"goal", "goal_index"}:
            goal = self._chosen_goal(chosen)
        else:
            goal, info["redrawn"] = self._statistics.draw(self.np_random)
        return self.begin(goal, self._user.reset(goal, self.np_random)), {"goal": goal.id, **info}

    def step(self, action: Any) -> tuple[NDArray[np.int8], float, bool, bool, dict[str, Any]]:
        exchange, info = self.speak(action)
        observation = self.listen(self._user.reply(exchange.said))
        is_last = len(self.dialogue.exchanges) >= self._max_turns and not self._user.is_over
        is_over = self._user.is_over or is_last
        outcome = self.outcome() if is_over else None
        reward = self._paid(outcomes.TaskTurn(exchange, outcome, self.convlab_outcome))
        self._rewards.append(reward)
        if outcome is not None:
            info["is_success"] = outcome.success
            info["outcome"] = outcome.numbers()
            info["domains"] = {name: found.success for name, found in outcome.domains.items()}
            if self._convlab2:
                judged = self.convlab_outcome()
                info["outcome"] |= judged.numbers()
                info["domains"] |= {f"convlab2/{name}": found.success for name, found in judged.domains.items()}
            if self._keeps_transcripts:
                info["transcript"] = self.transcript()
        truncated = is_last and self._turn_limit == "truncates"
        return observation, reward, is_over and not truncated, truncated, info

    def begin(
        self, goal: Goal, acts: Sequence[DialogueAct], heard: list[DialogueAct] | None = None
    ) -> NDArray[np.int8]:
        """Begin with an utterance of the user, who may be a person; the goal has no domains if it is not known.

        Arguments and result are those of `listen`.
        """
        self.dialogue = TaskDialogue(
            goal, self._new_belief(), self.lexicalizer, self.np_random, self._errors, self._max_acts
        )
        self._rewards: list[float] = []
        self._last_action = self._silence
        return self.listen(acts, heard)

    def speak(self, action: Any) -> tuple[Exchange, dict[str, Any]]:
        """Say the chosen acts; returns the exchange, which the user's utterance begins, and counts for ``info``."""
        if self._composites is not None:
            action = self._composites[int(action)]
        said, n_unheard = self.dialogue.say(self.world.system_acts.decode(action))
        if self._nlg is not None:
            text = self._nlg.generate([list(act) for act in said.acts])
            self.dialogue.reword(text, self.world.templates.parse(text, self.dialogue.told))
        self._last_action = action
        return self.dialogue.exchanges[-1], {"unheard_acts": n_unheard, "unsayable_acts": said.n_unsayable}

    def listen(self, acts: Sequence[DialogueAct], heard: list[DialogueAct] | None = None) -> NDArray[np.int8]:
        """Hear acts of the user, understood as ``heard`` (``None`` to find out); returns the observation."""
        dialogue = self.dialogue
        if heard is None and self._nlu is not None:
            heard = dialogue.with_errors(self.understand(self.world.templates.render(acts, "user")))
        dialogue.listen(acts, heard)
        progress = self._progress(len(dialogue.exchanges))
        return self._vectorizer.observation(delexicalized(dialogue.heard), self._last_action, dialogue.belief, progress)

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabularies and the database."""
        return self.world.fingerprint

    def action_masks(self) -> NDArray[np.bool_]:
        """Actions that can be said as a whole, for sb3-contrib's ``MaskablePPO``; all if there is none.

        Shape (combinations,) or, with a bit per act, (2 * acts,): whether each may be 0, and whether it may be 1.
        """
        acts = self.world.system_acts.acts
        sayable = np.array([self.lexicalizer.can_say(act, self.dialogue.belief) for act in acts])
        if self._composites is None:
            return np.stack([np.ones_like(sayable), sayable], axis=1).ravel()
        allowed = ~(self._composites[:, ~sayable] != 0).any(axis=1)
        return allowed if allowed.any() else ~allowed

    def understand(self, text: str) -> list[DialogueAct]:
        """What the agent understands of words, without semantic errors: with its NLU, or with templates."""
        templates = self.world.templates
        last = self.dialogue.exchanges[-1] if self.dialogue.exchanges else None
        if self._nlu is None:
            about = [DialogueAct(INFORM, self.dialogue.belief.active), *last.said] if last is not None else []
            return templates.parse(text, about)
        context = [last.text or templates.render(last.said, "agent")] if last is not None else []
        return as_acts(self._nlu.predict(text, context), "nlu: predict()")

    def rule_action(self) -> Any:
        """The action of the rule policy in this state.

        With combinations, it is the largest one that contains only acts of the rule policy.
        """
        acts = self._rule_policy.act(self.dialogue.belief, self.dialogue.heard)
        bits = self.world.system_acts.encode(acts)
        if self._composites is None:
            return bits
        if not bits.any():
            said = " ".join(map(str, acts))
            raise DataError(f"{self.world.name}: no action has the rule policy's {said}; lower min_count")
        is_part = ~(self._composites > bits).any(axis=1)
        return int((is_part * self._composites.sum(axis=1)).argmax())

    def outcome(self) -> outcomes.Outcome:
        """Outcome of the dialogue so far."""
        dialogue, complete = self.dialogue, self._user.is_complete
        return outcomes.outcome_of(dialogue.goal, dialogue.exchanges, complete, self.world.database)

    def convlab_outcome(self) -> outcomes.ConvLabOutcome:
        """Outcome of the dialogue so far, by ConvLab-2's rules."""
        dialogue, complete, database = self.dialogue, self._user.is_complete, self.world.database
        return outcomes.convlab_outcome_of(dialogue.goal, dialogue.exchanges, complete, database, dialogue.told)

    def transcript(self) -> dict[str, Any]:
        """The dialogue so far, as `rl4dialog.features.dialogue_acts.tasks.outcome.transcript` writes it."""
        is_over, templates = self._user.is_over, self.world.templates
        return outcomes.transcript(self.dialogue, self._rewards, self.outcome(), is_over, templates)

    def demonstrations(self) -> tuple[NDArray[np.int8], NDArray[Any], NDArray[np.int8]]:
        """Turns of the training dialogues, with the belief that the agent would have had in them.

        Acts outside the vocabulary are left out and, with combinations, turns whose combination has no number. A
        warning says how many. Returns observations (turns, length of the layout), actions (turns, number of acts) or,
        with combinations, (turns,), and (turns,) 1 for those that the next turn of their dialogue does not follow: its
        last turn, or one before a turn that is left out.
        """
        found: list[tuple[NDArray[np.int8], Any, int]] = []
        n_acts = n_unknown = 0
        for dialogue in self.world.dialogues["train"]:
            belief, last = self._new_belief(), self._silence
            for i, turn in enumerate(dialogue.turns):
                belief.hear(turn.user)
                heard = delexicalized(turn.user)
                observation = self._vectorizer.observation(heard, last, belief, self._progress(i))
                acts = delexicalized(turn.system)
                last = self.world.system_acts.encode(acts)
                n_acts, n_unknown = n_acts + len(acts), n_unknown + len(acts) - int(last.sum())
                found.append((observation, last, int(i == len(dialogue.turns) - 1)))
                belief.say(turn.system)
        if self._composites is not None:
            number = {composite.tobytes(): i for i, composite in enumerate(self._composites)}
            has = [a.tobytes() in number for _, a, _ in found]
            known = [
                (o, number[a.tobytes()], end or int(not has[i + 1])) for i, (o, a, end) in enumerate(found) if has[i]
            ]
            if len(known) < len(found):
                n_lost = len(found) - len(known)
                _logger.warning(
                    _LOST, self.world.name, n_lost, len(found), "turns", "combination", "raise n_composites"
                )
            found = known
        elif n_unknown:
            _logger.warning(_LOST, self.world.name, n_unknown, n_acts, "acts", "act", "lower min_count")
        observations, actions, ends = zip(*found, strict=True)
        return np.stack(observations), np.array(actions), np.array(ends, np.int8)

    def _new_belief(self) -> BeliefState:
        ontology = self.world.ontology
        return BeliefState(ontology) if self._tracker is None else TrackedBelief(ontology, self._tracker)

    def _paid(self, turn: outcomes.TaskTurn) -> float:
        name = getattr(self._reward, "__name__", type(self._reward).__name__)
        turn_of = f"turn {len(self.dialogue.exchanges)} of a dialogue about goal {self.dialogue.goal.id!r}"
        where = f"the reward of {turn_of} ({name})"
        try:
            paid = self._reward(turn)
        except Exception as error:
            raise RewardError(f"{where} raised {type(error).__name__}: {error}") from error
        try:
            reward = float(paid)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise RewardError(f"{where} must be a finite number, not {shown(paid)}")
        return reward

    def _chosen_goal(self, options: Mapping[str, Any]) -> Goal:
        goal = options.get("goal")
        if isinstance(goal, Goal):
            return goal
        if goal is not None:
            raise ConfigError(f"reset: options['goal'] must be a Goal, not {shown(goal)}")
        index = options.get("goal_index")
        return self._goals[int(self.np_random.integers(len(self._goals))) if index is None else index]

    def _progress(self, n_turns: int) -> float:
        """Share of the allowed turns that is over after this number of turns."""
        return min(n_turns, self._max_turns - 1) / self._max_turns
