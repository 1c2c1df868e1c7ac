"""Conversations in which an agent chooses goals, as vectorized environments of stable-baselines3."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError, PartnerError, RewardError, RL4DialogError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.protocols import BatchedConversationReward, Partner, PartnerService
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, SPEAKERS, Dialogue, PartnerReply, Sample, Turn, given_turns
from rl4dialog.envs.conversation import PartnersSide, first_prompts
from rl4dialog.envs.utterance_view import LEAVES_ACTION
from rl4dialog.rollouts.conversing import partner_answers
from rl4dialog.rollouts.turn_goals.estimators import StateEstimator
from rl4dialog.tasks.turn_goals import GoalChoice, GoalTurn, Speaker, TurnGoal, chosen_goals, follows


def check_samples(samples: Sequence[Sample]) -> None:
    """Check that conversations can begin about all samples: with a persona of the partner and its first utterance."""
    for sample in samples:
        info = sample.meta_data or {}
        for key, what in (("partner_persona", "facts about the partner"), ("history", "a first utterance")):
            found = info.get(key)
            if not isinstance(found, list | tuple) or not found:
                raise DataError(
                    f"env.id: turn_goals needs {what} in meta_data[{key!r}] of every sample, and sample {sample.id!r} "
                    f"has none; the datapools get_acquainted and persona_pairs provide both"
                )


class GoalConversation:
    """A conversation in progress.

    Attributes:
        goals: Numbers of the goals so far.
        said: The agent's utterances and the partner's, in turn.
        rewards: Reward of each turn.
        left: Whether the partner has left.
        estimate: Estimate of the partner's state, in its last observation.
    """

    def __init__(self, samples: Sequence[Sample], place: int, seed: int) -> None:
        self.sample, self.place, self.seed = samples[place], place, seed
        self.goals: list[int] = []
        self.said: list[str] = []
        self.rewards: list[float] = []
        self.left = False
        self.estimate: list[float] = []

    @property
    def meta_info(self) -> dict[str, Any]:
        """The sample's meta data."""
        return self.sample.meta_data or {}

    @property
    def texts(self) -> list[str]:
        """All utterances, those of the sample included."""
        return [*self.meta_info["history"], *self.said]

    @property
    def partner_texts(self) -> list[str]:
        """What the partner said, its first utterance included."""
        return [turn.text for turn in self.dialogue.turns if turn.speaker == PARTNER]

    @property
    def dialogue(self) -> Dialogue:
        """The conversation so far."""
        given = given_turns(self.meta_info["history"])
        said = (Turn(text, PARTNER if i % 2 else AGENT) for i, text in enumerate(self.said))
        return Dialogue(self.sample.id, (*given, *said), meta_data=self.meta_info, n_given=len(given))

    def turn(self, goal: TurnGoal) -> GoalTurn:
        """Return the agent's next turn."""
        return GoalTurn(goal, self.texts, self.meta_info, derive_seed(self.seed, "turn", len(self.goals)))

    def follows(self, goals: Sequence[TurnGoal]) -> list[bool]:
        """Whether each of the agent's utterances has its goal."""
        return [follows(text, goals[n], goals) for text, n in zip(self.said[::2], self.goals, strict=True)]

    def transcript(self, goals: Sequence[TurnGoal], outcome: Mapping[str, float]) -> dict[str, Any]:
        """Write the conversation, which is over, as plain JSON types: ``turns``, ``outcome`` and ``ended_by``."""
        turns: list[dict[str, Any]] = []
        dialogue = self.dialogue
        chosen = iter(zip(self.goals, self.rewards, strict=True))
        for i, turn in enumerate(dialogue.turns):
            record: dict[str, Any] = {"speaker": SPEAKERS[turn.speaker], "text": turn.text}
            if i < dialogue.n_given:
                record["given"] = True
            elif turn.speaker == AGENT:
                number, reward = next(chosen)
                record |= {"goal": goals[number].name, "reward": reward}
            turns.append(record)
        record = {"turns": turns, "outcome": dict(outcome), "ended_by": "partner" if self.left else "max_turns"}
        return record | {key: self.meta_info[key] for key in ("persona", "partner_persona") if key in self.meta_info}


class Answering(ABC):
    """Answers in the conversations of `turn_goals`."""

    def begin(self, place: int, conversation: GoalConversation) -> None:  # noqa: B027 (a service has no state)
        """Begin a conversation, or return to where it is."""

    @abstractmethod
    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        """Answer the agent's last utterance in each conversation."""


class OwnPartners(Answering):
    """A copy of a partner for each conversation."""

    def __init__(self, partner: Partner, n: int) -> None:
        self._partners, self._name = [copy.deepcopy(partner) for _ in range(n)], type(partner).__name__

    def begin(self, place: int, conversation: GoalConversation) -> None:
        partner, texts, n_given = self._partners[place], conversation.texts, len(conversation.meta_info["history"])
        partner.reset(conversation.meta_info, conversation.seed)
        for n in range(n_given + 1, len(texts), 2):
            partner.reply(texts[:n])

    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        return [self._answer(*pair) for pair in zip(self._partners, conversations, strict=True)]

    def _answer(self, partner: Partner, conversation: GoalConversation) -> PartnerReply:
        try:
            reply = checked_reply(partner.reply(conversation.texts), self._name)
        except RL4DialogError:
            raise
        except Exception as error:
            raise PartnerError(
                f"partner {self._name!r} failed on sample {conversation.sample.id!r}: {type(error).__name__}: {error}"
            ) from error
        if reply.failed is not None:
            raise PartnerError(f"partner {self._name!r} failed on sample {conversation.sample.id!r}: {reply.failed}")
        return reply


class SharedPartner(Answering):
    """A partner in the main process, which answers all conversations in one batch."""

    def __init__(self, service: PartnerService) -> None:
        self._service = service

    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        side = PartnersSide(self._service.side)
        prompts = first_prompts(self._service.side, [(each.texts, each.meta_info) for each in conversations])
        answers, failures = partner_answers(self._service, prompts)
        for i, problem in failures.items():
            raise PartnerError(f"the partner failed on sample {conversations[i].sample.id!r}: {problem}")
        left = [list(ids) == [LEAVES_ACTION] for ids in answers]
        return [
            PartnerReply(leaves=True) if leaves else checked_reply(side.said(ids), "language_model")
            for ids, leaves in zip(answers, left, strict=True)
        ]


def answering(partner: Partner | PartnerService, n: int) -> Answering:
    """Return what lets a partner answer in n conversations."""
    return SharedPartner(partner) if isinstance(partner, PartnerService) else OwnPartners(partner, n)


class TurnGoalVecEnv(VecEnv):
    """Conversations about samples, in each of whose turns the agent chooses a goal.

    A step is a turn of all conversations: a speaker, who is not trained, says something to reach the goals, and the
    partners answer, each side in one batch. It all happens in the main process, where the models are. Actions are the
    numbers of the goals (``Discrete``). Observations (``Box``) are the estimate of the partner's state, the share of
    turns that are over and, if wanted, how often each goal was chosen so far.

    The reward of a turn is that of the conversation reward. The last ``info`` of an episode has ``outcome``, numbers by
    name: ``goals_followed``, the share of the agent's utterances that have their goal, ``different_goals``, the number
    of different goals, and those of the reward.

    Args:
        goals: The id of a set of goals, ``get_acquainted`` or ``convogym``, or a list, whose items are names of their
            goals, or ``{name: ..., questions: [...], words: [...]}``: what the scripted speaker says, and words
            that show the goal in an utterance.
        max_turns: Number of turns.
        observes_goals: Whether observations have the goals so far.
        max_prompt_length: Maximum length of the prompts of language models, in tokens.
        max_utterance_length: Maximum length of their utterances, in tokens.
        samples: What the conversations are about.
        speaker: Builds the speaker from the two lengths, ``max_prompt_length`` and ``max_length``.
        partner: Builds the partner from the same.
        estimator: Builds the estimator.
        turn_reward: Reward of a conversation after each of its turns.
        outcomes: Numbers about whole conversations.
        n_envs: Number of conversations.
        is_numbered: Whether the n-th conversation begins from a seed of its own and is about the n-th sample in an
            order that the seed determines, for evaluations. Otherwise samples are drawn.
        keeps_transcripts: Whether the last ``info`` of an episode has the whole conversation as ``transcript``.
        best_order: Finds the numbers of the goals for the player ``best_order``.

    Attributes:
        goals: The goals.
        max_turns: Number of turns.
        parts: What the builder shares with other environments, if it does.

    Raises:
        ConfigError: If a goal is unknown, or the speaker cannot speak to reach it.
        DataError: If a sample has no persona of the partner.
        PartnerError: By a step, if the partner fails.
        RewardError: By a step, if the reward fails.
    """

    def __init__(
        self,
        goals: GoalChoice,
        max_turns: Count = 4,
        observes_goals: bool = False,
        max_prompt_length: Count = 192,
        max_utterance_length: Count = 32,
        *,
        samples: Sequence[Sample],
        speaker: Callable[..., Speaker],
        partner: Callable[..., Partner | PartnerService],
        estimator: Callable[[], StateEstimator],
        turn_reward: BatchedConversationReward,
        outcomes: Callable[[list[Dialogue]], list[dict[str, float]]] | None = None,
        n_envs: int = 1,
        is_numbered: bool = False,
        keeps_transcripts: bool = False,
        best_order: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        self.goals = chosen_goals(goals, "env.args.goals")
        self.max_turns = max_turns
        self.parts: Any = None
        check_samples(samples)
        lengths = {"max_prompt_length": max_prompt_length, "max_length": max_utterance_length}
        self._speaker = speaker(**lengths)
        self._speaker.check(self.goals)
        self._partners = answering(partner(**lengths), n_envs)
        self._estimator, self._reward, self._outcomes = estimator(), turn_reward, outcomes
        self._samples, self._observes_goals = samples, observes_goals
        self._is_numbered, self._keeps_transcripts, self._best_order = is_numbered, keeps_transcripts, best_order
        self._generators = [np.random.default_rng() for _ in range(n_envs)]
        self._talks: list[GoalConversation] = []
        n_inputs = self._estimator.size + 1 + (len(self.goals) if observes_goals else 0)
        space = gym.spaces.Box(-np.inf, np.inf, (n_inputs,), np.float32)
        super().__init__(n_envs, space, gym.spaces.Discrete(len(self.goals)))
        self._restart(0, seed=0)

    @property
    def fingerprint(self) -> str:
        """Hash of what observations and actions mean."""
        about = [[goal.name for goal in self.goals], self._estimator.fingerprint, self.max_turns, self._observes_goals]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def reset(self) -> np.ndarray:
        for i, seed in enumerate(self._seeds):
            if seed is not None:
                self._generators[i] = np.random.default_rng(seed)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._talks = [self._begun(i) for i in range(self.num_envs)]
        self._estimate(self._talks)
        return self._observations()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = [int(action) for action in actions]

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        talks = self._talks
        said = self._speaker.speak([talk.turn(self.goals[n]) for talk, n in zip(talks, self._actions, strict=True)])
        for talk, text, number in zip(talks, said, self._actions, strict=True):
            talk.said.append(text)
            talk.goals.append(number)
        for talk, answer in zip(talks, self._partners.answers(talks), strict=True):
            talk.said.append(answer.text or "")
            talk.left = answer.leaves
        dones = [talk.left or len(talk.goals) >= self.max_turns for talk in talks]
        for talk, reward in zip(talks, self._rewards(dones), strict=True):
            talk.rewards.append(reward)
        rewards = np.array([talk.rewards[-1] for talk in talks], np.float32)
        self._estimate(talks)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False, **self._numbered(i)} for i in range(len(talks))]
        if over := [i for i, done in enumerate(dones) if done]:
            observations = self._observations()
            for i, outcome in zip(over, self._outcomes_of([talks[i] for i in over]), strict=True):
                infos[i] |= self._last_info(talks[i], outcome) | {"terminal_observation": observations[i]}
                talks[i] = self._begun(i)
            self._estimate([talks[i] for i in over])
        return self._observations(), rewards, np.array(dones), infos

    def _begun(self, i: int) -> GoalConversation:
        """Begin a conversation."""
        if self._is_numbered:
            self._numbers[i] += self.num_envs
            number = self._numbers[i]
            place = self._order[number % len(self._samples)]
            talk = GoalConversation(self._samples, place, derive_seed(self._seed, number))
        else:
            drawn = self._generators[i].integers([len(self._samples), 2**31])
            talk = GoalConversation(self._samples, int(drawn[0]), int(drawn[1]))
        self._partners.begin(i, talk)
        return talk

    def _rewards(self, dones: list[bool]) -> list[float]:
        """Compute the rewards of the last turns."""
        try:
            found = self._reward([talk.dialogue for talk in self._talks], dones)
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"the reward of a turn failed: {type(error).__name__}: {error}") from error
        for value in found:
            if not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
                raise RewardError(f"the reward of a turn must be a finite number, not {value!r}")
        return [float(value) for value in found]  # type: ignore[arg-type]

    def _estimate(self, talks: Sequence[GoalConversation]) -> None:
        for talk, estimate in zip(talks, self._estimator([talk.partner_texts for talk in talks]), strict=True):
            talk.estimate = estimate.tolist()

    def _observations(self) -> np.ndarray:
        return np.stack([self._observation(talk) for talk in self._talks])

    def _observation(self, talk: GoalConversation) -> np.ndarray:
        numbers = [*talk.estimate, len(talk.goals) / self.max_turns]
        if self._observes_goals:
            numbers += np.bincount(talk.goals, minlength=len(self.goals)).tolist()
        return np.array(numbers, np.float32)

    def _outcomes_of(self, talks: Sequence[GoalConversation]) -> list[dict[str, float]]:
        numbers = [
            {
                "goals_followed": float(np.mean(talk.follows(self.goals))),
                "different_goals": float(len(set(talk.goals))),
            }
            for talk in talks
        ]
        if self._outcomes is None:
            return numbers
        found = self._outcomes([talk.dialogue for talk in talks])
        return [{**own, **others} for own, others in zip(numbers, found, strict=True)]

    def _last_info(self, talk: GoalConversation, outcome: Mapping[str, float]) -> dict[str, Any]:
        info: dict[str, Any] = {"outcome": dict(outcome)}
        info["episode"] = {"r": sum(talk.rewards), "l": len(talk.rewards)}
        if self._keeps_transcripts:
            info["transcript"] = talk.transcript(self.goals, outcome)
        return info

    def _numbered(self, i: int) -> dict[str, Any]:
        return {"episode_number": self._numbers[i]} if self._is_numbered else {}

    # What `env_method` can call for each conversation.

    def _restart(self, i: int, seed: int) -> None:
        """Begin with the first episode again, with other seeds, at the next reset."""
        self._seed, self._numbers = seed, [place - self.num_envs for place in range(self.num_envs)]
        self._order = np.random.default_rng(derive_seed(seed, "samples")).permutation(len(self._samples)).tolist()

    def _state_dict(self, i: int) -> dict[str, Any]:
        """Return the state of a conversation in the middle of it, as JSON values."""
        talk = self._talks[i]
        numbers = {"sample": talk.place, "seed": talk.seed, "left": talk.left}
        lists = {"goals": talk.goals, "said": talk.said, "rewards": talk.rewards, "estimate": talk.estimate}
        return {**numbers, **lists, "np_random": self._generators[i].bit_generator.state}

    def _load_state_dict(self, i: int, state: Mapping[str, Any]) -> np.ndarray:
        """Restore a state, and return the observation."""
        talk = GoalConversation(self._samples, state["sample"], state["seed"])
        talk.left, talk.estimate = state["left"], list(state["estimate"])
        talk.goals, talk.said, talk.rewards = (list(state[key]) for key in ("goals", "said", "rewards"))
        self._generators[i].bit_generator.state = state["np_random"]
        self._talks[i : i + 1] = [talk]
        self._partners.begin(i, talk)
        return self._observation(talk)

    def _random_action(self, i: int) -> int:
        talk = self._talks[i]
        return derive_seed(talk.seed, "random", len(talk.goals)) % len(self.goals)

    def _round_robin_action(self, i: int) -> int:
        talk = self._talks[i]
        return (derive_seed(talk.seed, "round_robin") + len(talk.goals)) % len(self.goals)

    def _best_order_action(self, i: int) -> int:
        if self._best_order is None:
            raise ConfigError("the player best_order has no meaning here, where no order was looked for")
        return int(self._best_order()[len(self._talks[i].goals)])

    def _rule_action(self, i: int) -> int:
        return self._round_robin_action(i)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        method = getattr(self, f"_{method_name}", None)
        if method is None:
            raise AttributeError(f"turn_goals has no method {method_name}")
        return [method(i, *args, **kwargs) for i in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None if attr_name == "render_mode" else getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"{attr_name} of turn_goals cannot be set")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def close(self) -> None:
        pass


PLAYERS = ("random", "round_robin", "best_order")
"""Agents that need no training: any goal; one goal after the other, from a random one on; the best fixed order."""


def greedy_order(env: TurnGoalVecEnv) -> list[int]:
    """A fixed order of goals: in each turn, the one with the highest mean reward after those before it.

    All goals of a turn are compared in the same conversations of the train split, one for each of the environments.
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
