"""Conversations of a policy with a partner: the one loop in which both sides speak, turns settle and are paid.

Rollouts, evaluations and simulations hold conversations with a :class:`Driver`, scripted players too.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch

from rl4dialog.core.errors import ConfigError, DataError, PartnerError, RewardError, RL4DialogError, raised, shown
from rl4dialog.core.protocols import PartnerService, Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import AGENT, PARTNER, PartnerReply, Sample
from rl4dialog.envs.conversation import OutsidePartner, PartnersSide, first_prompts
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import FAILED_ACTION, LEAVES_ACTION, PADDING_ACTION, UtteranceView
from rl4dialog.functional.distributed import all_reduce_max, all_reduce_max_numbers
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.references import WeightCopy
from rl4dialog.rollouts.talk import Talk, replies_in
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.text.prompts import encode_reply


def partner_answers(
    partner: PartnerService, observations: Mapping[str, np.ndarray], timeout_s: float | None = None
) -> tuple[list[Sequence[int]], dict[int, str]]:
    """Utterances of a partner after its prompts (n, P), without padding, and messages of failures by position."""
    n = len(observations["prompt_ids"])
    if partner.members:
        said, failures = [[FAILED_ACTION]] * n, dict[int, str]()
        for number, member in enumerate(partner.members):
            rows = np.flatnonzero(observations["partner"] == number)
            if member is None or not (all_reduce_max(rows.size) if member.in_lockstep else rows.size):
                continue
            own = {name: array[rows] for name, array in observations.items()}
            spoken, failed = partner_answers(member, own, timeout_s)
            for row, ids in zip(rows, spoken, strict=True):
                said[row] = [*ids]
            failures |= {int(rows[i]): problem for i, problem in failed.items()}
        return [*said], failures
    try:
        # In lockstep, the time of other processes counts, too, and all end with one.
        with time_limit(None if partner.in_lockstep else timeout_s):
            answers = partner.answers(dict(observations))
        if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) != n:
            raise PartnerError(f"it returned {shown(answers)}, not a list of {n} answers")
    except TimeIsUp:
        problem = f"it had not returned after {timeout_s:g} s; reward_fn.timeout_s sets this limit (null disables it)"
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    except Exception as error:
        if partner.in_lockstep or (isinstance(error, RL4DialogError) and not isinstance(error, PartnerError)):
            raise
        problem = str(error) if isinstance(error, PartnerError) else raised(error)
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    side = partner.side
    actions: list[Sequence[int]] = []
    problems: dict[int, str] = {}
    for i, answer in enumerate(answers):
        if (what := _problem(answer, side)) is not None:
            problems[i] = f"it answered {shown(answer)}, but {what}"
        actions.append([FAILED_ACTION] if i in problems else [LEAVES_ACTION] if answer is None else answer)
    return actions, problems


def partner_replies(
    partner: PartnerService, conversations: Sequence[tuple[Sequence[str], dict[str, Any]]]
) -> list[PartnerReply]:
    """Answers of a partner to the last utterance of each conversation (utterances, meta data), with its failures."""
    answers, problems = partner_answers(partner, first_prompts(partner.side, conversations))
    side, replies = PartnersSide(partner.side), []
    for i, ids in enumerate(answers):
        is_silent = i in problems or [*ids] == [LEAVES_ACTION]
        replies.append(PartnerReply(leaves=True, failed=problems.get(i)) if is_silent else side.answer(ids))
    return replies


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


@dataclass(eq=False)
class Driver:
    """Holds conversations, one in each environment. Subclasses say what becomes of replies, failures and payments."""

    policy: LMActorCriticPolicy  # the agent
    env: Any  # environments with one step per utterance, behind the methods of stable-baselines3's `VecEnv`
    observations: dict[str, np.ndarray]  # their observations: `prompt_ids` (n_envs, P) and so on
    task_rewards: TaskRewards | None = None  # rewards of the conversations, if there are any
    iteration: int = 1  # for changing weights of rewards
    partner: PartnerService | None = None  # the partner, if it answers from this process
    partner_timeout_s: float | None = None  # its time limit
    generation_kwargs: Mapping[str, Any] = field(default_factory=dict)  # generation settings, if not the policy's

    number_type: ClassVar[type[np.floating]] = np.float64  # of rewards
    actions: np.ndarray = field(init=False)  # what was said in the last step, padded with -1. Shape (n_envs, T)
    dones: np.ndarray = field(init=False)  # where it ended a conversation. Shape (n_envs,)
    infos: list[dict[str, Any]] = field(init=False)  # what the environments say of it

    def __post_init__(self) -> None:
        self.talks = [Talk() for _ in range(self.env.num_envs)]  # the conversation in each environment
        self.seconds: dict[str, float] = defaultdict(float)  # time by phase (time/..._s)
        self.lockstep = self.policy.lockstep  # whether all processes hold conversations now, with equal passes

    @contextmanager
    def remembering_prompts(self) -> Iterator[None]:
        """Context of the steps of the same conversations; the weights must not change."""
        of_partner = nullcontext() if self.partner is None else self.partner.remembering_prompts()
        with self.policy.remembering_prompts(), of_partner:
            yield

    def step(self, rows: np.ndarray) -> list[int]:
        """Let whoever's turn it is speak in some environments; returns those whose turn is complete, or failed.

        In lockstep, also without environments, while other processes have some: models then read a stand-in.
        """
        # 1. Each side speaks, in one batch.
        speakers = self.speakers(rows)
        mine, theirs = rows[speakers == AGENT], rows[speakers == PARTNER]
        n_mine, n_theirs = all_reduce_max_numbers(len(mine), len(theirs)) if self.lockstep else (len(mine), len(theirs))
        self.actions = np.full(self.observations["context_ids"].shape, PADDING_ACTION, dtype=np.int64)
        with self.timed("generate"):
            said = self.say(mine if len(mine) else _STAND_IN) if n_mine else None
        answered, failures = None, dict[int, str]()
        if self.partner is not None and (len(theirs) or (n_theirs and self.partner.in_lockstep)):
            with self.timed("partner"):
                if self.partner.learns:
                    answered = self.partner.replies(self._observed(theirs))
                else:
                    failures = self.ask(self.partner, theirs)
        for replies, places in ((said, mine), (answered, theirs)):
            if replies is not None and len(places):
                ids = replies.response_ids.masked_fill(~replies.response_mask, PADDING_ACTION).cpu().numpy()
                self.actions[places, : ids.shape[1]] = ids
        # 2. The environments step; meanwhile, the replies are noted.
        self.env.step_async(self.actions)
        with self.timed("evaluate"):
            self._note(said, mine, answered, theirs)
        with self.timed("score"):
            self.observations, _, self.dones, self.infos = self.env.step_wait()
            # 3. Turns settle, and 4. are paid.
            settled = []
            for row in map(int, rows):
                talk, info = self.talks[row], self.infos[row]
                talk.has_begun, talk.info = True, info
                if row in failures:  # the environment does not know the cause
                    info["error"] = f"the partner failed on sample {info['sample_id']!r}: {failures[row]}"
                if "error" in info:
                    self.fail(talk, info["error"], info.get("partner_failed", False))
                elif "reward_parts" in info:
                    talk.settle(bool(self.dones[row]))
                else:
                    continue
                settled.append(row)
            if talks := [talk for row in settled if (talk := self.talks[row]).error is None]:
                self.pay(talks)
        return settled

    def speakers(self, rows: np.ndarray) -> np.ndarray:
        """Whose turn it is in some environments."""
        return self.observations["speaker"][rows] if "speaker" in self.observations else np.full(len(rows), AGENT)

    def say(self, rows: np.ndarray) -> Replies:
        """Utterances of the agent in some environments."""
        tensors = {name: torch.as_tensor(a, device=self.policy.device) for name, a in self._observed(rows).items()}
        return self.policy.generate(tensors, **self.generation_kwargs).with_secrets(tensors)

    def noted(self, said: Replies | None, n_before: Sequence[int]) -> Replies | None:
        """Take a batch of one side's replies while the environments step; conversations had as many before.

        Returns ``None`` if there are none, or only one to a stand-in, for which there is no conversation.
        """
        return said if n_before else None

    def fail(self, talk: Talk, message: str, partner_failed: bool) -> None:
        talk.fail(message, partner_failed)

    def pay(self, talks: Sequence[Talk]) -> None:
        """Pay for the last turns of conversations."""
        if self.task_rewards is not None:
            for talk, payment in zip(talks, self.task_rewards(talks, self.iteration), strict=True):
                talk.earn(payment, self.number_type)

    def _observed(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[rows] for name, array in self.observations.items()}

    def ask(self, partner: PartnerService, rows: np.ndarray) -> dict[int, str]:
        """Write answers of a partner into the actions; returns why it has no valid one, by environment."""
        answers, problems = partner_answers(partner, self._observed(rows), self.partner_timeout_s)
        for row, ids in zip(rows, answers, strict=True):
            self.actions[row, : len(ids)] = ids
        return {int(rows[i]): problem for i, problem in problems.items()}

    def _note(self, said: Replies | None, mine: np.ndarray, answered: Replies | None, theirs: np.ndarray) -> None:
        said = self.noted(said, [len(self.talks[row].replies) for row in mine])
        if said is not None:
            for row, reply in zip(mine, replies_in(said), strict=True):
                self.talks[row].spoken = reply
        if answered is not None:
            answered = self.noted(answered, [len(self.talks[row].answers) for row in theirs])
        if answered is None:
            return
        assert self.partner is not None
        for row, reply, ids in zip(theirs, replies_in(answered), answered.per_row("response_ids"), strict=True):
            reply.is_cut = not self.partner.side.end_of_turn.is_end(ids.tolist())
            reply.rewards = np.zeros(reply.n_tokens, self.number_type)
            self.talks[row].answers.append(reply)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of the body to a phase."""
        started = time.perf_counter()
        yield
        self.seconds[f"time/{phase}_s"] += time.perf_counter() - started


class _GivenConversations:
    """One environment for each sample, in this process; the end of a conversation begins no other."""

    def __init__(self, views: Sequence[UtteranceView], samples: Sequence[Sample], seeds: Sequence[int]) -> None:
        self.views, self.num_envs = views, len(views)
        starts = [(seed, {"sample": sample}) for seed, sample in zip(seeds, samples, strict=True)]
        for view, (seed, options) in zip(views, starts, strict=True):
            view.expect_reset(seed=seed, options=options)
        found = [view.reset(seed=s, options=options)[0] for view, (s, options) in zip(views, starts, strict=True)]
        self.observations = _stacked(found)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions
        for view, action in zip(self.views, actions, strict=True):
            view.expect_step(action)

    def step_wait(self) -> tuple[dict[str, np.ndarray], list[float], list[bool], list[dict[str, Any]]]:
        steps = [view.step(action) for view, action in zip(self.views, self._actions, strict=True)]
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        dones = [a or b for a, b in zip(terminated, truncated, strict=True)]
        return _stacked(observations), [*rewards], dones, [*infos]


def _stacked(observations: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([each[name] for each in observations]) for name in observations[0]}


@dataclass(frozen=True)
class Begun:
    """The beginning of a conversation, which is repeated before it goes on with other random numbers."""

    steps: Sequence[tuple[int, Sequence[int]]] = ()  # speaker and token ids of each step of the environment
    seeds: Mapping[int, int] = field(default_factory=dict)  # new seeds of a partner in the environment, by step
    words: Sequence[int] = ()  # first tokens of a single reply


_STAND_IN = np.zeros(1, dtype=int)
ValuesOf = Callable[[Replies], torch.Tensor]  # computes the value of the state before each token. Shape (B, T)


@dataclass(eq=False)
class _Evaluation(Driver):
    """Conversations about given samples, of which one whose reward or partner fails ends there."""

    players: Sequence[Player] | None = None  # who speak instead of the policy
    begun: Sequence[Begun] = ()  # beginnings to repeat; then the talks note their steps
    values_of: ValuesOf | None = None  # computes values of the agent's utterances

    def step(self, rows: np.ndarray) -> list[int]:
        speakers = zip(rows, self.speakers(rows), strict=True) if self.begun else ()
        for row in rows if self.begun else ():
            seed = self.begun[row].seeds.get(len(self.talks[row].steps))
            if seed is not None and (partner := self.env.views[row].env.conversation.partner) is not None:
                partner.reseed(seed)
        settled = super().step(rows)
        for row, speaker in speakers:
            ids = self.actions[row][self.actions[row] != PADDING_ACTION]
            self.talks[row].steps.append((int(speaker), ids.tolist()))
        return settled

    def say(self, rows: np.ndarray) -> Replies:
        ids = self._given(rows)
        if self.players is not None:
            ids = [_scripted_ids(self.players[row], self.env.views[row].env) for row in rows]
        elif not ids and self.begun and self.begun[rows[0]].words:
            ids = self._completed(rows)
        if ids and (self.players is None or self.values_of is None):
            return Replies.from_ids([[0]] * len(ids), ids)
        said = Replies.from_ids(self._prompts(rows), ids, self.policy.device) if ids else super().say(rows)
        if self.values_of is not None:
            with torch.no_grad():
                said.values = said.computed(self.values_of)
        return said

    def ask(self, partner: PartnerService, rows: np.ndarray) -> dict[int, str]:
        if not (given := self._given(rows)):
            return super().ask(partner, rows)
        for row, ids in zip(rows, given, strict=True):
            self.actions[row, : len(ids)] = ids
        return {}

    def _given(self, rows: np.ndarray) -> list[list[int]]:
        """Token ids of the next steps, if they are repeated ones."""
        left = [self.begun[row].steps[len(self.talks[row].steps) :] for row in rows if self.begun]
        return [list(steps[0][1]) for steps in left if steps]

    def _completed(self, rows: np.ndarray) -> list[list[int]]:
        """Single replies with equally many first tokens, after which a decoder-only model reads on."""
        words, settings = [list(self.begun[row].words) for row in rows], asdict(self.policy.settings)
        prompts = [seen + said for seen, said in zip(self._prompts(rows), words, strict=True)]
        read = Replies.from_ids(prompts, words, self.policy.device)
        settings["max_new_tokens"] = self.policy.reply_limit() - len(words[0])
        settings["min_length"] = max(settings["min_length"] - len(words[0]), 0)
        obs = {"prompt_ids": read.prompt_ids, "prompt_mask": read.prompt_mask}
        rest = self.policy.generate(obs, **settings).per_row("response_ids")
        # A marker may begin among the first tokens.
        end = self.policy.end_of_turn
        return [end.until_end(said + more.tolist()) for said, more in zip(words, rest, strict=True)]

    def _prompts(self, rows: np.ndarray) -> list[list[int]]:
        seen = zip(self.observations["prompt_ids"][rows], self.observations["prompt_mask"][rows], strict=True)
        return [ids[mask == 1].tolist() for ids, mask in seen]

    def noted(self, said: Replies | None, n_before: Sequence[int]) -> Replies | None:
        """Their tokens and log-probabilities, without the prompts: records are kept, and sent between processes."""
        if said is None or not n_before:
            return None
        last = said.prompt_ids[:, -1:].clone(), said.prompt_mask[:, -1:].clone()
        return Replies(*last, said.response_ids, said.response_mask, log_probs=said.log_probs, values=said.values)

    def pay(self, talks: Sequence[Talk]) -> None:
        try:
            super().pay(talks)
        except RewardError as error:
            for talk in talks:
                talk.fail(str(error), partner_failed=False)


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
        what = f"player {type(player).__name__} failed on sample {env.sample.id!r}"
        raise DataError(f"{what}: {raised(error)}") from error
    return end.until_end(ids)


@dataclass(eq=False)
class Conversing:
    """Lets a policy, or scripted players, talk with a partner about samples, one conversation for each.

    Args:
        make_env: Builds an environment for a policy and a maximum number of tokens of its utterances.
        partner: The partner, if it answers from the main process.
        task_rewards: Rewards of the conversations; none by default.
        iteration: Iteration for changing weights of rewards.
        partner_timeout_s: Time limit of a partner in the main process; by default none.
    """

    make_env: Callable[[LMActorCriticPolicy, int], UtteranceView]
    partner: PartnerService | None = None
    task_rewards: TaskRewards | None = None
    iteration: int = 1
    partner_timeout_s: float | None = None

    @property
    def in_lockstep(self) -> bool:
        """Whether all processes must hold the conversations, because the partner runs a model that they share."""
        return self.partner is not None and self.partner.in_lockstep

    @property
    def needs_initial_weights(self) -> bool:
        """Whether :meth:`begin_run` needs the weights with which the training of the policy began."""
        return self.partner is not None and self.partner.needs_initial_weights

    def begin_run(self, policy: LMActorCriticPolicy, initial: WeightCopy | None = None) -> None:
        """Prepare a partner in the main process; see :class:`~rl4dialog.core.protocols.PartnerService`."""
        if self.partner is not None:
            self.partner.begin_run(policy, initial)

    def __call__(
        self,
        policy: LMActorCriticPolicy,
        samples: Sequence[Sample],
        seeds: Sequence[int],
        players: Sequence[Player] | None = None,
        begun: Sequence[Begun] = (),
        values_of: ValuesOf | None = None,
        **generation_kwargs: Any,
    ) -> list[Talk]:
        """Hold one conversation about each sample, all of them at once, in the order of the samples.

        Args:
            policy: The agent.
            samples: The samples.
            seeds: Seed of the partner, and of the player, in each conversation.
            players: One player per sample, who speaks instead of the policy, within the same length limits. It is a
                ``ConfigError`` if no token ends an utterance, and a ``DataError`` if a player fails.
            begun: One beginning per sample, which is repeated first; the talks then have their ``steps``.
            values_of: Computes values of the agent's utterances, which those of the talks then have.
            generation_kwargs: Generation settings; by default those of the policy.
        """
        limit = policy.reply_limit(**generation_kwargs)
        env = _GivenConversations([self.make_env(policy, limit) for _ in samples], samples, seeds)
        for player, sample, seed in zip(players or (), samples, seeds, strict=players is not None):
            player.reset(sample.meta_data or {}, derive_seed(seed, "player"))
        of_run = self.task_rewards, self.iteration, self.partner, self.partner_timeout_s
        driver = _Evaluation(policy, env, env.observations, *of_run, generation_kwargs, players, begun, values_of)
        driver.lockstep = policy.lockstep and players is None
        rows = np.arange(len(samples))
        with driver.remembering_prompts():
            while all_reduce_max(rows.size) if driver.lockstep else rows.size:
                # Those with a step to repeat go first.
                repeated = [
                    row for row in map(int, rows) if begun and len(driver.talks[row].steps) < len(begun[row].steps)
                ]
                driver.step(np.array(repeated) if repeated else rows)
                rows = np.array([row for row in rows if not driver.talks[row].is_over], dtype=int)
        for talk, view in zip(driver.talks, env.views, strict=True):
            talk.dialogue = talk.with_rewards(view.env.conversation.dialogue(talk.info.get("ended_by")))
            talk.info = {}
        return driver.talks
