"""Conversations in which an agent chooses goals, as vectorized environments of stable-baselines3."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from rl4dialog.features.dialogue_acts.turn_goals.estimators import StateEstimator
from rl4dialog.features.dialogue_acts.turn_goals.speakers import GoalTurn, Speaker
from rl4dialog.rollouts.conversing import partner_replies
from rl4dialog.tasks.turn_goals import GoalChoice, TurnGoal, chosen_goals, follows


def check_samples(samples: Sequence[Sample]) -> None:
    """Check that conversations can begin about all samples: with a persona of the partner and its first utterance."""
    for sample in samples:
        info = sample.meta_data or {}
        for key, what in (("partner_persona", "facts about the partner"), ("history", "a first utterance")):
            found = info.get(key)
            if not isinstance(found, list | tuple) or not found:
                where = f"meta_data[{key!r}] of every sample, and sample {sample.id!r} has none"
                pools = "the datapools get_acquainted and persona_pairs provide both"
                raise DataError(f"env.id: turn_goals needs {what} in {where}; {pools}")


@dataclass
class SaidTurn:
    """A turn: the number of its goal, what the agent said and, once known, the partner's answer and the reward."""

    goal: int
    text: str
    answer: str = ""
    reward: float = 0.0


class GoalConversation:
    """A conversation in progress."""

    def __init__(self, samples: Sequence[Sample], place: int, seed: int) -> None:
        self.sample, self.place, self.seed = samples[place], place, seed
        self.meta_info: dict[str, Any] = self.sample.meta_data or {}
        self.turns: list[SaidTurn] = []
        self.left = False  # whether the partner has left
        self.estimate: list[float] = []  # estimate of the partner's state, in its last observation

    @property
    def texts(self) -> list[str]:
        """All utterances, those of the sample included."""
        return [*self.meta_info["history"], *(text for turn in self.turns for text in (turn.text, turn.answer))]

    @property
    def dialogue(self) -> Dialogue:
        """The conversation so far."""
        given = given_turns(self.meta_info["history"])
        said = [each for turn in self.turns for each in (Turn(turn.text, AGENT), Turn(turn.answer, PARTNER))]
        return Dialogue(self.sample.id, (*given, *said), meta_data=self.meta_info, n_given=len(given))

    def transcript(
        self, goals: Sequence[TurnGoal], outcome: Mapping[str, float], is_rated: bool = True
    ) -> dict[str, Any]:
        """Write the conversation, which is over, as plain JSON types: ``turns``, ``outcome`` and ``ended_by``."""
        records: list[dict[str, Any]] = [
            {"speaker": SPEAKERS[turn.speaker], "text": turn.text, "given": True}
            for turn in given_turns(self.meta_info["history"])
        ]
        for turn in self.turns:
            chosen = {"goal": goals[turn.goal].name, "reward": turn.reward if is_rated else None}
            records.append({"speaker": SPEAKERS[AGENT], "text": turn.text, **chosen})
            records.append({"speaker": SPEAKERS[PARTNER], "text": turn.answer})
        ended = {"turns": records, "outcome": dict(outcome), "ended_by": "partner" if self.left else "max_turns"}
        return ended | {key: self.meta_info[key] for key in ("persona", "partner_persona") if key in self.meta_info}


class Answering:
    """Answers in n conversations: a copy of a partner in each, or one in the main process in all of them."""

    def __init__(self, partner: Partner | PartnerService, n: int) -> None:
        self._name = type(partner).__name__
        self._service = partner if isinstance(partner, PartnerService) else None
        self._own = [copy.deepcopy(partner) for _ in range(n)] if isinstance(partner, Partner) else []

    def begin(self, place: int, conversation: GoalConversation) -> None:
        """Begin a conversation, or return to where it is; a partner in the main process has no state."""
        if not self._own:
            return
        texts, n_given = conversation.texts, len(conversation.meta_info["history"])
        self._own[place].reset(conversation.meta_info, conversation.seed)
        for n in range(n_given + 1, len(texts), 2):
            self._own[place].reply(texts[:n])

    def answers(self, conversations: Sequence[GoalConversation]) -> list[PartnerReply]:
        """Answer the last utterance, whose answer is still empty, in each conversation."""
        if self._service is None:
            replies = [self._reply(*pair) for pair in zip(self._own, conversations, strict=True)]
        else:
            said = [(each.texts[:-1], each.meta_info) for each in conversations]
            replies = [checked_reply(each, self._name) for each in partner_replies(self._service, said)]
        for conversation, reply in zip(conversations, replies, strict=True):
            if reply.failed is not None:
                where = f"partner {self._name!r} failed on sample {conversation.sample.id!r}"
                raise PartnerError(f"{where}: {reply.failed}")
        return replies

    def _reply(self, partner: Partner, conversation: GoalConversation) -> PartnerReply:
        try:
            return checked_reply(partner.reply(conversation.texts[:-1]), self._name)
        except RL4DialogError:
            raise
        except Exception as error:
            return PartnerReply(failed=f"{type(error).__name__}: {error}")


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
    """

    def __init__(
        self,
        goals: GoalChoice,
        max_turns: Count = 4,
        observes_goals: bool = False,
        max_prompt_length: Count = 192,
        max_utterance_length: Count = 32,
        *,
        samples: Sequence[Sample],  # what the conversations are about
        speaker: Callable[..., Speaker],  # builds the speaker from `max_prompt_length` and `max_length`
        partner: Callable[..., Partner | PartnerService],  # builds the partner from the same
        estimator: Callable[[], StateEstimator],
        turn_reward: BatchedConversationReward,  # of a conversation after each of its turns
        outcomes: Callable[[list[Dialogue]], list[dict[str, float]]] | None = None,  # about whole conversations
        n_envs: int = 1,  # number of conversations
        # Whether the n-th conversation begins from a seed of its own and is about the n-th sample in an order that the
        # seed determines, for evaluations. Otherwise samples are drawn.
        is_numbered: bool = False,
        keeps_transcripts: bool = False,  # whether the last `info` of an episode has the conversation as `transcript`
        best_order: Callable[[], Sequence[int]] | None = None,  # finds the goals of the player `best_order`
    ) -> None:
        self.goals = chosen_goals(goals, "env.args.goals")
        self.max_turns = max_turns
        self.parts: Any = None  # what the builder shares with other environments, if it does
        check_samples(samples)
        lengths = {"max_prompt_length": max_prompt_length, "max_length": max_utterance_length}
        self._speaker = speaker(**lengths)
        self._speaker.check(self.goals)
        self._partners = Answering(partner(**lengths), n_envs)
        self._estimator, self._reward, self._outcomes = estimator(), turn_reward, outcomes
        self._samples, self._observes_goals = samples, observes_goals
        self._is_numbered, self._keeps_transcripts, self._best_order = is_numbered, keeps_transcripts, best_order
        self.is_rated = not (is_numbered and getattr(turn_reward, "asks_people", False))
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
        asked = [
            GoalTurn(self.goals[n], talk.texts, talk.meta_info, derive_seed(talk.seed, "turn", len(talk.turns)))
            for talk, n in zip(talks, self._actions, strict=True)
        ]
        for talk, text, number in zip(talks, self._speaker.speak(asked), self._actions, strict=True):
            talk.turns.append(SaidTurn(number, text))
        for talk, answer in zip(talks, self._partners.answers(talks), strict=True):
            talk.turns[-1].answer, talk.left = answer.text or "", answer.leaves
        dones = [talk.left or len(talk.turns) >= self.max_turns for talk in talks]
        rewards = self._rewards(dones)
        for talk, reward in zip(talks, rewards, strict=True):
            talk.turns[-1].reward = reward
        self._estimate(talks)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in talks]
        if self._is_numbered:
            for info, number in zip(infos, self._numbers, strict=True):
                info["episode_number"] = number
        if over := [i for i, done in enumerate(dones) if done]:
            observations = self._observations()
            for i, outcome in zip(over, self._outcomes_of([talks[i] for i in over]), strict=True):
                earned = [turn.reward for turn in talks[i].turns]
                infos[i] |= {"outcome": outcome, "episode": {"r": sum(earned), "l": len(earned)}}
                infos[i]["terminal_observation"] = observations[i]
                if self._keeps_transcripts:
                    infos[i]["transcript"] = talks[i].transcript(self.goals, outcome, self.is_rated)
                talks[i] = self._begun(i)
            self._estimate([talks[i] for i in over])
        return self._observations(), np.array(rewards, np.float32), np.array(dones), infos

    def _begun(self, i: int) -> GoalConversation:
        if self._is_numbered:
            self._numbers[i] += self.num_envs
            number = self._numbers[i]
            place, seed = self._order[number % len(self._samples)], derive_seed(self._seed, number)
        else:
            place, seed = map(int, self._generators[i].integers([len(self._samples), 2**31]))
        talk = GoalConversation(self._samples, place, seed)
        self._partners.begin(i, talk)
        return talk

    def _rewards(self, dones: list[bool]) -> list[float]:
        """Compute the rewards of the last turns; 0 if nobody is asked."""
        if not self.is_rated:
            return [0.0] * len(dones)
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
        heard = [[turn.text for turn in talk.dialogue.turns if turn.speaker == PARTNER] for talk in talks]
        for talk, estimate in zip(talks, self._estimator(heard), strict=True):
            talk.estimate = estimate.tolist()

    def _observations(self) -> np.ndarray:
        return np.stack([self._observation(talk) for talk in self._talks])

    def _observation(self, talk: GoalConversation) -> np.ndarray:
        numbers = [*talk.estimate, len(talk.turns) / self.max_turns]
        if self._observes_goals:
            chosen = [turn.goal for turn in talk.turns]
            numbers += np.bincount(np.array(chosen, int), minlength=len(self.goals)).tolist()
        return np.array(numbers, np.float32)

    def _outcomes_of(self, talks: Sequence[GoalConversation]) -> list[dict[str, float]]:
        found = self._outcomes([talk.dialogue for talk in talks]) if self._outcomes is not None else [{}] * len(talks)
        numbers = []
        for talk, others in zip(talks, found, strict=True):
            followed = [follows(turn.text, self.goals[turn.goal], self.goals) for turn in talk.turns]
            different = {turn.goal for turn in talk.turns}
            own = {"goals_followed": float(np.mean(followed)), "different_goals": float(len(different))}
            numbers.append({**own, **others})
        return numbers

    # What `env_method` can call for each conversation.

    def _restart(self, i: int, seed: int) -> None:
        """Begin with the first episode again, with other seeds, at the next reset."""
        self._seed, self._numbers = seed, [place - self.num_envs for place in range(self.num_envs)]
        self._order = np.random.default_rng(derive_seed(seed, "samples")).permutation(len(self._samples)).tolist()

    def _state_dict(self, i: int) -> dict[str, Any]:
        """Return the state of a conversation in the middle of it, as JSON values."""
        talk = self._talks[i]
        return {
            "sample": talk.place,
            "seed": talk.seed,
            "left": talk.left,
            "goals": [turn.goal for turn in talk.turns],
            "said": [text for turn in talk.turns for text in (turn.text, turn.answer)],
            "rewards": [turn.reward for turn in talk.turns],
            "estimate": talk.estimate,
            "np_random": self._generators[i].bit_generator.state,
        }

    def _load_state_dict(self, i: int, state: Mapping[str, Any]) -> np.ndarray:
        """Restore a state, and return the observation."""
        talk = GoalConversation(self._samples, state["sample"], state["seed"])
        talk.left, talk.estimate = state["left"], list(state["estimate"])
        turns = zip(state["goals"], state["said"][::2], state["said"][1::2], state["rewards"], strict=True)
        talk.turns = [SaidTurn(*turn) for turn in turns]
        self._generators[i].bit_generator.state = state["np_random"]
        self._talks[i : i + 1] = [talk]
        self._partners.begin(i, talk)
        return self._observation(talk)

    def _random_action(self, i: int) -> int:
        talk = self._talks[i]
        return derive_seed(talk.seed, "random", len(talk.turns)) % len(self.goals)

    def _round_robin_action(self, i: int) -> int:
        talk = self._talks[i]
        return (derive_seed(talk.seed, "round_robin") + len(talk.turns)) % len(self.goals)

    def _best_order_action(self, i: int) -> int:
        if self._best_order is None:
            raise ConfigError("the player best_order has no meaning here, where no order was looked for")
        return int(self._best_order()[len(self._talks[i].turns)])

    _rule_action = _round_robin_action

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [getattr(self, f"_{method_name}")(i, *args, **kwargs) for i in self._get_indices(indices)]

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
