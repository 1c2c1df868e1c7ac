"""Conversations of a policy with a partner: who speaks next, and whole conversations about given samples.

Rollouts, evaluations and simulations let both sides speak through :func:`speak`.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch

from rl4dialog.core.errors import ConfigError, DataError, PartnerError, RewardError, RL4DialogError, shown
from rl4dialog.core.protocols import PartnerService, Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, Sample, Turn, reply_dialogue, system_text
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import FAILED_ACTION, LEAVES_ACTION, PADDING_ACTION, UtteranceView
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.references import WeightCopy
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.text.prompts import encode_reply


@dataclass
class SaidTokens:
    """Tokens of one utterance of the agent.

    Attributes:
        ids: Token ids, the end included.
        log_probs: Log-probabilities under the policy that sampled them, before top-k and other filters. Shape (n,).
            ``None`` if no policy spoke.
        rewards: Task rewards, without the KL penalty. Shape (n,). ``None`` if there are none.
    """

    ids: Sequence[int] | np.ndarray
    log_probs: np.ndarray | None = None
    rewards: np.ndarray | None = None


def with_tokens(
    dialogue: Dialogue, said: Iterable[SaidTokens], prompt: str, tokenizer: str, is_cut: bool = False
) -> Dialogue:
    """A conversation with the tokens of what the agent said in it, and the texts before it from the prompt.

    A turn whose reward is all on its last token has this as ``reward``; otherwise, its ``token_rewards`` hold all. If
    ``is_cut``, the value after the last turn is to be bootstrapped.
    """
    tokens = iter(said)
    turns = [_with_tokens(turn, next(tokens)) if turn.speaker == AGENT else turn for turn in dialogue.said]
    system = system_text(prompt)
    return replace(
        dialogue,
        turns=(*dialogue.turns[: dialogue.n_given], *turns),
        meta_data={**dialogue.meta_data, SYSTEM_KEY: system} if system else dialogue.meta_data,
        terminated=not is_cut,
        tokenizer=tokenizer,
    )


def _with_tokens(turn: Turn, said: SaidTokens) -> Turn:
    known: dict[str, object] = {"ids": tuple(map(int, said.ids))}
    if said.log_probs is not None:
        known["log_probs"] = tuple(map(_short, said.log_probs))
    if said.rewards is not None:
        rewards = tuple(map(_short, said.rewards))
        is_dense = any(rewards[:-1])
        known |= {"reward": 0.0, "token_rewards": rewards} if is_dense else {"reward": rewards[-1]}
    return replace(turn, **known)  # type: ignore[arg-type]


def _short(number: np.floating) -> float:
    """The shortest number that is this one in its precision, which takes less space in a file."""
    return float(str(number))


def partner_answers(
    partner: PartnerService, observations: Mapping[str, np.ndarray], timeout_s: float | None = None
) -> tuple[list[Sequence[int]], dict[int, str]]:
    """Utterances of a partner after its prompts ``prompt_ids`` (n, P) and so on: actions without padding.

    Also returns the messages of failures, by position.
    """
    n = len(observations["prompt_ids"])
    try:
        with time_limit(timeout_s):
            answers = partner.answers(dict(observations))
        if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) != n:
            raise PartnerError(f"it returned {shown(answers)}, not a list of {n} answers")
    except TimeIsUp:
        problem = f"it had not returned after {timeout_s:g} s; reward_fn.timeout_s sets this limit (null disables it)"
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    except Exception as error:
        if isinstance(error, RL4DialogError) and not isinstance(error, PartnerError):
            raise
        problem = str(error) if isinstance(error, PartnerError) else f"{type(error).__name__}: {error}"
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    side = partner.side
    actions, problems = [], {}
    for i, answer in enumerate(answers):
        if (what := _problem(answer, side)) is not None:
            problems[i] = f"it answered {shown(answer)}, but {what}"
        actions.append([FAILED_ACTION] if i in problems else [LEAVES_ACTION] if answer is None else answer)
    return actions, problems


def _problem(answer: Any, side: OutsidePartner) -> str | None:
    """Find out what is wrong with an answer."""
    if answer is None:
        return None
    if not isinstance(answer, (Sequence, np.ndarray)) or not all(isinstance(id, Integral) for id in answer):
        return "an answer is a sequence of token ids, or None to leave"
    if not len(answer):
        return "even an answer without text has the token that ends it; None leaves"
    if not 0 <= min(answer) <= max(answer) < side.vocab_size:
        return f"its vocabulary has the ids 0 to {side.vocab_size - 1}"
    ids = [int(id) for id in answer]
    ends = (i + 1 for i in range(len(ids)) if side.end_of_turn.is_end(ids[: i + 1]))
    n = min(next(ends, side.max_length), side.max_length)
    if len(ids) != n:
        return f"its utterance ends with its end of turn, or with token {side.max_length}"
    return None


@dataclass
class Speech:
    """What both sides say in one step of the environments.

    Attributes:
        actions: Token ids of each utterance, padded with -1. Shape (n_envs, T).
        failures: By environment, why the partner in this process has no valid answer.
        agent_rows: Environments in which the agent speaks, in order.
        replies: The agent's utterances; ``None`` if it says nothing.
        partner_rows: Environments in which a partner that learns speaks, in order.
        partner_replies: Its utterances; ``None`` if it says nothing, or does not learn.
        agent_seconds: Time of the agent.
        partner_seconds: Time of the partner.
    """

    actions: np.ndarray
    agent_rows: np.ndarray
    replies: Replies | None
    agent_seconds: float
    partner_seconds: float
    failures: dict[int, str] = field(default_factory=dict)
    partner_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    partner_replies: Replies | None = None

    def said_tokens(self) -> list[tuple[int, SaidTokens]]:
        """Tokens of the agent's utterances, by environment."""
        if self.replies is None:
            return []
        numbers = (self.replies.per_row(name) for name in ("response_ids", "log_probs"))
        return [(int(row), SaidTokens(*each)) for row, *each in zip(self.agent_rows, *numbers, strict=True)]

    def explain(self, row: int, info: dict[str, Any]) -> None:
        """Write the cause of a failure into the info of an environment, which does not know it."""
        if row in self.failures:
            info["error"] = f"the partner failed on sample {info['sample_id']!r}: {self.failures[row]}"


@contextmanager
def remembering_prompts(policy: LMActorCriticPolicy, partner: PartnerService | None) -> Iterator[None]:
    """Context of the calls of :func:`speak` in the same conversations; the weights must not change."""
    with policy.remembering_prompts(), partner.remembering_prompts() if partner is not None else nullcontext():
        yield


def speak(
    policy: LMActorCriticPolicy,
    observations: Mapping[str, np.ndarray],
    rows: np.ndarray,
    partner: PartnerService | None = None,
    partner_timeout_s: float | None = None,
    **generation_kwargs: Any,
) -> Speech:
    """Let the speaker say its utterance in some environments (``rows``); the others wait.

    Observations are those of all environments: ``prompt_ids`` (n_envs, P) and so on.
    """
    n_envs, length = observations["context_ids"].shape
    actions = np.full((n_envs, length), PADDING_ACTION, dtype=np.int64)
    speakers = _speakers(observations, rows)
    mine, theirs = rows[speakers == AGENT], rows[speakers == PARTNER]
    replies, started = None, time.perf_counter()
    if len(mine):
        obs = {name: torch.as_tensor(array[mine], device=policy.device) for name, array in observations.items()}
        replies = policy.generate(obs, **generation_kwargs)
        _write(actions, mine, replies)
    speech = Speech(actions, mine, replies, time.perf_counter() - started, 0.0)
    started = time.perf_counter()
    if len(theirs):
        assert partner is not None
        prompts = {name: array[theirs] for name, array in observations.items()}
        if partner.learns:
            speech.partner_rows, speech.partner_replies = theirs, partner.replies(prompts)
            _write(actions, theirs, speech.partner_replies)
        else:
            answers, problems = partner_answers(partner, prompts, partner_timeout_s)
            speech.failures = {int(theirs[i]): problem for i, problem in problems.items()}
            for row, said in zip(theirs, answers, strict=True):
                actions[row, : len(said)] = said
    speech.partner_seconds = time.perf_counter() - started
    return speech


def _write(actions: np.ndarray, rows: np.ndarray, replies: Replies) -> None:
    """Write utterances into the actions of their environments."""
    ids = replies.response_ids.masked_fill(~replies.response_mask, PADDING_ACTION).cpu().numpy()
    actions[rows, : ids.shape[1]] = ids


def _speakers(observations: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Whose utterance it is in each of these environments."""
    return observations["speaker"][rows] if "speaker" in observations else np.full(len(rows), AGENT)


def _scripted_ids(player: Player, env: TextGenEnv) -> list[int]:
    """Token ids of a player's next utterance, cut at the length limit."""
    conversation, end, tokenizer = env.conversation, env.end_of_turn, env.tokenizer
    if tokenizer.eos_token_id not in end.eos_token_ids:
        raise ConfigError("scripted players need a tokenizer with an end-of-sequence token that ends their utterances")
    try:
        text = player.say(conversation.texts)
        # Not with the turn marker, which can have several tokens, and which the environment adds to the history.
        ids = encode_reply(tokenizer, text, None, env.max_episode_length, conversation.history.prompt)
    except Exception as error:
        raise DataError(
            f"player {type(player).__name__} failed on sample {env.sample.id!r}: {type(error).__name__}: {error}"
        ) from error
    return next((ids[:n] for n in range(1, len(ids)) if end.is_end(ids[:n])), ids)


@dataclass
class Talk:
    """One conversation, with the data for metrics of its replies.

    Attributes:
        dialogue: The conversation; each utterance of the agent has its reward, NaN if a reward failed or there is none.
        prompts: Prompt of each of the agent's replies.
        replies: The agent's replies.
        references: Their references.
        meta_infos: Their meta data.
        tokens: Their tokens.
        rewards: Sum over the conversation of each part of the reward, by name, unweighted; NaN if a reward failed.
        error: Message of a failed reward or partner; the conversation ended there.
        partner_failed: Whether it was the partner.
        is_single_reply: Whether there is no partner.
    """

    dialogue: Dialogue
    prompts: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    meta_infos: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[SaidTokens] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    partner_failed: bool = False
    is_single_reply: bool = False

    @property
    def total(self) -> float:
        """Reward of the whole conversation, weighted."""
        return float(sum(turn.reward for turn in self.dialogue.said if turn.speaker == AGENT))


class Conversing:
    """Lets a policy, or scripted players, talk with a partner about samples, one conversation for each.

    Args:
        make_env: Builds an environment for a policy and a maximum number of tokens of its utterances.
        partner: The partner, if it answers from the main process.
        task_rewards: Rewards of the conversations; none by default.
        iteration: Iteration for changing weights of rewards.
        partner_timeout_s: Time limit of a partner in the main process; by default none.
    """

    def __init__(
        self,
        make_env: Callable[[LMActorCriticPolicy, int], UtteranceView],
        partner: PartnerService | None = None,
        task_rewards: TaskRewards | None = None,
        iteration: int = 1,
        partner_timeout_s: float | None = None,
    ) -> None:
        self._make_env, self._partner, self._partner_timeout_s = make_env, partner, partner_timeout_s
        self._task_rewards, self._iteration = task_rewards, iteration

    @property
    def needs_initial_weights(self) -> bool:
        """Whether :meth:`begin_run` needs the weights with which the training of the policy began."""
        return self._partner is not None and self._partner.needs_initial_weights

    def begin_run(self, policy: LMActorCriticPolicy, initial: WeightCopy | None = None) -> None:
        """Prepare a partner in the main process; see :class:`~rl4dialog.core.protocols.PartnerService`."""
        if self._partner is not None:
            self._partner.begin_run(policy, initial)

    def __call__(
        self,
        policy: LMActorCriticPolicy,
        samples: Sequence[Sample],
        seeds: Sequence[int],
        players: Sequence[Player] | None = None,
        **generation_kwargs: Any,
    ) -> list[Talk]:
        """Hold one conversation about each sample, all of them at once.

        Args:
            policy: The agent.
            samples: The samples.
            seeds: Seed of the partner, and of the player, in each conversation.
            players: One player per sample, who speaks instead of the policy, within the same length limits.
            generation_kwargs: Generation settings; by default those of the policy.

        Returns:
            The conversations, in the order of the samples. One whose reward or partner fails ends there.

        Raises:
            ConfigError: If players speak, but no token ends an utterance.
            DataError: If a player fails.
        """
        limit = policy.reply_limit(**generation_kwargs)
        envs = [self._make_env(policy, limit) for _ in samples]
        for env, sample, seed in zip(envs, samples, seeds, strict=True):
            env.expect_reset(seed=seed, options={"sample": sample})
        talks: list[_TalkInProgress] = [_TalkInProgress(sample) for sample in samples]
        found = [
            env.reset(seed=seed, options={"sample": sample})[0]
            for env, sample, seed in zip(envs, samples, seeds, strict=True)
        ]
        for player, sample, seed in zip(players or (), samples, seeds, strict=players is not None):
            player.reset(sample.meta_data or {}, derive_seed(seed, "player"))
        rows = np.arange(len(envs))
        with remembering_prompts(policy, self._partner):
            while rows.size:
                observations = {name: np.stack([each[name] for each in found]) for name in found[0]}
                scripted = rows[_speakers(observations, rows) == AGENT] if players is not None else rows[:0]
                others = np.setdiff1d(rows, scripted)
                speech = speak(
                    policy, observations, others, self._partner, self._partner_timeout_s, **generation_kwargs
                )
                for speaking, tokens in speech.said_tokens():
                    talks[speaking].spoken = tokens
                for row in scripted:
                    assert players is not None
                    ids = _scripted_ids(players[row], envs[row].env)
                    speech.actions[row, : len(ids)] = ids
                    talks[row].spoken = SaidTokens(ids)
                settled: list[tuple[int, dict[str, Any], bool]] = []
                for row in rows:
                    envs[row].expect_step(speech.actions[row])
                for row in rows:
                    found[row], _, terminated, truncated, info = envs[row].step(speech.actions[row])
                    speech.explain(int(row), info)
                    if "error" in info:
                        talks[row].fail(info["error"], info.get("partner_failed", False))
                    elif "reward_parts" in info:
                        settled.append((int(row), info, terminated or truncated))
                self._add(settled, talks)
                rows = np.array([row for row in rows if not talks[row].is_over], dtype=int)
        return [talk.finished(env) for talk, env in zip(talks, envs, strict=True)]

    def _add(self, settled: list[tuple[int, dict[str, Any], bool]], talks: Sequence[_TalkInProgress]) -> None:
        """Add completed turns to the conversations, with their rewards."""
        if not settled:
            return
        rows, infos, overs = (list(each) for each in zip(*settled, strict=True))
        paid: list[Any] = [None] * len(rows)
        earlier = [np.zeros(0)] * len(rows)
        parts: dict[str, list[float]] = {}
        error = None
        if self._task_rewards is not None:
            lengths = [len(talks[row].spoken.ids) for row in rows]
            try:
                paid, earlier, found = self._task_rewards(infos, lengths, overs, self._iteration)
                parts = {name: each for name, each in found.items() if name not in self._task_rewards.weight_names}
            except RewardError as failure:
                error = str(failure)
        for i, row in enumerate(rows):
            values = {name: each[i] for name, each in parts.items()}
            talks[row].add(infos[i], paid[i], earlier[i], values, overs[i])
            if error is not None:
                talks[row].fail(error, partner_failed=False)


class _TalkInProgress:
    """A conversation that is collected turn by turn."""

    def __init__(self, sample: Sample) -> None:
        self.is_over = False
        self.spoken = SaidTokens(())  # tokens of the agent's utterance that is not settled yet
        self._talk = Talk(Dialogue(sample.id, (), meta_data=sample.meta_data or {}))
        self._rewards: list[float] = []
        self._parts: dict[str, float] = defaultdict(float)
        self._ended_by: Any = None

    def add(
        self,
        info: Mapping[str, Any],
        paid: np.ndarray | None,
        earlier: np.ndarray,
        parts: Mapping[str, float],
        is_over: bool,
    ) -> None:
        talk = self._talk
        talk.prompts.append(info["prompt_text"])
        talk.replies.append(info["gen_text"])
        talk.references.append(info["ref_texts"])
        talk.meta_infos.append(info["meta_info"])
        talk.tokens.append(replace(self.spoken, rewards=paid))
        self._rewards.append(math.nan if paid is None else float(paid.sum()))
        for i, payment in enumerate(earlier):
            self._rewards[i] += float(payment)
            rewards = talk.tokens[i].rewards
            assert rewards is not None
            rewards[-1] += payment
        for name, value in parts.items():
            self._parts[name] += value
        self.is_over, self._ended_by = is_over, info.get("ended_by")

    def fail(self, message: str, partner_failed: bool) -> None:
        self._talk.error, self._talk.partner_failed, self.is_over = message, partner_failed, True
        self._rewards, self._parts = [], {}

    def finished(self, env: UtteranceView) -> Talk:
        """Return the conversation, its rewards on the agent's utterances."""
        conversation = env.env.conversation
        dialogue = conversation.dialogue(self._ended_by)
        rewards = iter(self._rewards)
        turns = tuple(
            replace(turn, reward=next(rewards, np.nan)) if i >= dialogue.n_given and turn.speaker == AGENT else turn
            for i, turn in enumerate(dialogue.turns)
        )
        return replace(self._talk, dialogue=replace(dialogue, turns=turns), rewards=dict(self._parts))


def talk_of_one_reply(sample: Sample, reply: str) -> Talk:
    """Return a single reply to a sample as a conversation of one turn."""
    prompt, info = sample.prompt_or_input_text, sample.meta_data or {}
    dialogue = reply_dialogue(sample.id, prompt, reply, info)
    return Talk(dialogue, [prompt], [reply], [sample.references], [info], is_single_reply=True)
