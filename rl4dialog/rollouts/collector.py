"""Collection of rollouts: generate, step the workers, score; and the numbers that an iteration logs about it.

While the workers step through the replies (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities: of the same replies, or of conversations that have ended if
their turns are joined to rows. Each step produces a batch of replies; complete episodes go into the buffer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import ConfigError, PartnerError, RewardError, nearest_hint
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.types import Dialogue, EndedBy
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max, all_reduce_numbers
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.statistics import ratio_standard_error, repeated_share
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.conversations import EndedConversation, EvaluatedRows, Groups, GroupSettings, evaluate
from rl4dialog.rollouts.conversing import Driver
from rl4dialog.rollouts.talk import Talk, with_tokens
from rl4dialog.rollouts.task_rewards import RewardNormalizer, TaskRewards
from rl4dialog.text.tokenizer import tokenizer_hash

PREFIX = "rollout/info/"


def numbers_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers of an info by name, including booleans. Numbers in its ``meta_info`` come last."""
    found: dict[str, float] = {}
    for source in (info.get("meta_info") or {}, info):
        for name, value in source.items():
            if isinstance(value, (bool, int, float, np.number, np.bool_)) and math.isfinite(value):
                found[str(name)] = float(value)
    return found


@dataclass(frozen=True)
class RolloutRecord:
    """What functions under ``logging.info_fns`` read of an iteration; of several processes, that of their own."""

    infos: Sequence[Mapping[str, Any]]  # of each complete turn, with ``prompt_text``, ``gen_text`` and ``meta_info``
    rewards: Sequence[float]  # of these turns, as earned; NaN if the reward failed
    returns: Sequence[float]  # of the conversations that did not fail, as earned
    replies: Replies  # to train on, with log-probabilities, values and ``task_rewards``


def spread_of_returns(record: RolloutRecord) -> dict[str, float]:
    """Median, lowest and highest return of a conversation."""
    low, median, high = np.quantile(record.returns, (0.0, 0.5, 1.0))
    return {"min": low, "median": median, "max": high}


def measured(
    functions: Mapping[str, Callable[[RolloutRecord], Mapping[str, float]]], record: RolloutRecord
) -> dict[str, list[float]]:
    """The numbers of functions by id, as series ``rollout/info/<id>/<name>``."""
    found: dict[str, list[float]] = {}
    for id, function in functions.items():
        try:
            found |= {f"{PREFIX}{id}/{name}": [float(number)] for name, number in function(record).items()}
        except Exception as error:
            raise ConfigError(f"logging.info_fns: {id} failed: {type(error).__name__}: {error}") from error
    return found


@dataclass
class RolloutStats:
    """Statistics of one iteration's rollout."""

    n_tokens: int = 0  # number of agent tokens to train on
    n_spoken: int = 0  # number of all agent tokens, those of conversations that are left out included
    n_masked: int = 0  # number of episodes excluded because a reward or the partner failed
    last_failure: str | None = None  # message of the last reward that failed, if known
    means: dict[str, float] = field(default_factory=dict)  # averages to log, by key (rollout/...)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # duration by phase (time/..._s)
    # Reward and length of each episode, in the format of stable-baselines3's monitor.
    episodes: list[dict[str, float]] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)  # side and sample id of each episode


def measure_sampler(replies: Replies, series: dict[str, list[float]]) -> None:
    """Measure the difference between the sampler's distribution and the policy's."""
    if replies.truncated_mass is not None:
        series["rollout/truncated_mass"].extend(replies.flat("truncated_mass").tolist())
    if replies.sampler_log_probs is not None:
        gaps = replies.flat("sampler_log_probs") - replies.flat("log_probs")
        # The mean estimates the KL divergence of the sampler from the policy, per token.
        series["rollout/sampler_kl"].extend(gaps.tolist())
        largest = series["rollout/sampler_max_ratio"]
        largest[:] = [max([*largest, gaps.abs().max().exp().item()])]


def summarize(stats: RolloutStats, replies: Replies, series: dict[str, list[float]]) -> None:
    """Fill ``stats.means``, averaged over all processes, from the replies to train on and further numbers by key."""
    kl = replies.flat("unmasked_log_probs") - replies.flat("ref_log_probs")
    ids = replies.per_reply("response_ids")
    mine = {
        **series,
        "rollout/task_reward": [episode["r"] for episode in stats.episodes],
        "rollout/kl": kl.numpy(),
        "rollout/kl_per_reply": [row.sum() for row in replies.per_reply(kl)],
        "rollout/log_prob": replies.flat("log_probs").numpy(),
        "rollout/ref_log_prob": replies.flat("ref_log_probs").numpy(),
        "rollout/values": replies.flat("values").numpy(),
        "rollout/reply_length": [len(row) for row in ids],
        "rollout/repeated_trigrams": [repeated_share(row) for row in ids],
    }
    numbers: dict[str, list[Any]] = defaultdict(list)
    distinct: set[bytes] = set()
    for theirs, their_replies in all_gather_object((mine, {row.tobytes() for row in ids})):
        distinct |= their_replies
        for name, values in theirs.items():
            numbers[name].extend(values)
    counts = {"n_episodes": len(stats.episodes), "tokens": stats.n_tokens, "masked_rewards": stats.n_masked}
    counts["spoken_tokens"] = stats.n_spoken
    stats.means = {
        **{name: float(np.mean(values)) for name, values in numbers.items() if values},
        "rollout/task_reward_std": float(np.std(numbers["rollout/task_reward"])),
        "rollout/kl_se": ratio_standard_error(numbers["rollout/kl_per_reply"], numbers["rollout/reply_length"]),
        "rollout/distinct_replies": len(distinct) / len(numbers["rollout/reply_length"]),
        **{f"rollout/{name}": int(n) for name, n in zip(counts, all_reduce_numbers(*counts.values()), strict=True)},
    }
    if stats.means["rollout/spoken_tokens"] == stats.means["rollout/tokens"]:
        del stats.means["rollout/spoken_tokens"]  # as in most runs


def check_progress(stats: RolloutStats, n_partner_failed: float) -> None:
    """Raise if all conversations fail, which would otherwise loop forever."""
    if stats.n_masked < 100 or stats.episodes:
        return
    if n_partner_failed > stats.n_masked / 2:
        what = f"the partner failed in {n_partner_failed:g} of the first {stats.n_masked} conversations, and none of"
        raise PartnerError(f"{what} them can be trained on; set env.args.partner_on_error: raise to see the error")
    what = f"the reward failed for each of the first {stats.n_masked} episodes, so there is nothing to train on"
    if stats.last_failure is not None:
        raise RewardError(f"{what} with reward_fn.on_error: mask; the last failure: {stats.last_failure}")
    raise RewardError(f"{what}; set reward_fn.on_error: raise to see the error")


class Rollout(Driver):
    """The conversations of a rollout, and what is logged of them."""

    number_type = np.float32

    def __init__(
        self,
        settings: RolloutCollector,
        policy: LMActorCriticPolicy,
        env: VecEnv,
        observations: dict[str, np.ndarray],
        groups: GroupSettings,
        iteration: int,
        join_turns: bool,
    ) -> None:
        task_rewards = settings.task_rewards or TaskRewards(env.get_attr("reward_terms", 0)[0])
        of_partner = settings.partner, settings.partner_timeout_s
        super().__init__(policy, env, observations, task_rewards, iteration, *of_partner)
        self._settings, self._group_size = settings, groups.size
        # With one turn there is nothing to join.
        self.rows = EvaluatedRows(policy, join_turns and policy.joins_turns and settings.max_turns != 1)
        self.groups = Groups(groups)
        self.stats = RolloutStats(seconds=self.seconds)
        self.series: dict[str, list[float]] = defaultdict(list)  # numbers to average, by key
        self.n_done = np.zeros(env.num_envs, dtype=int)  # conversations that have ended, per environment
        self.n_spoken = 0  # agent tokens, those of unfinished conversations included
        self.dialogues: list[Dialogue] = []  # if they are kept, also those of groups that are left out
        self._tokenizer = tokenizer_hash(policy.end_of_turn.tokenizer) if settings.keeps_dialogues else ""

    @property
    def n_begun(self) -> np.ndarray:
        """Number of conversations that have begun, per environment."""
        return self.n_done + [talk.has_begun for talk in self.talks]

    def noted(self, said: Replies | None, n_before: Sequence[int]) -> Replies | None:
        if said is not None and not n_before:
            evaluate(self.policy, said)
            return None
        if said is not None:
            said.turn = said.response_mask * torch.tensor(n_before, device=said.response_mask.device)[:, None]
        replies = self.rows.add(said)
        if replies is not None:
            measure_sampler(replies, self.series)
            self.n_spoken += replies.n_tokens
        return replies

    def fail(self, talk: Talk, message: str, partner_failed: bool) -> None:
        if partner_failed and not self._settings.mask_failed_partners:
            raise PartnerError(message)
        if not partner_failed:
            if not self._settings.mask_failed_rewards:
                raise RewardError(message)
            self.stats.last_failure = message
        super().fail(talk, message, partner_failed)

    def pay(self, talks: Sequence[Talk]) -> None:
        super().pay(talks)
        assert self.task_rewards is not None
        self.stats.last_failure = self.task_rewards.last_failure or self.stats.last_failure
        for name, weight in self.task_rewards.weights(self.iteration).items():
            self.series[f"rollout/reward/{name}"].append(weight)

    def take(self, row: int) -> None:
        """Log a turn that is complete, and end the conversation if it is over."""
        talk = self.talks[row]
        if talk.error is None:
            found = {"cut_replies": talk.info["utterance_truncated"]}
            if self._settings.has_partner:
                found |= {"context_dropped": talk.info["context_dropped"], "partner_echo": talk.info["partner_echoes"]}
                found["empty_replies"] = not talk.info["gen_text"]
                found |= {k: talk.info[k] for k in ("partner_repeats",) if k in talk.info}
            for name, value in found.items():
                self.series[f"rollout/{name}"].append(float(value))
        if talk.is_over:
            self._end(row, talk)
            self.talks[row] = Talk()

    def _end(self, row: int, talk: Talk) -> None:
        """Train on a conversation, unless a reward failed or its group is left out."""
        info, last_value = talk.info, 0.0
        is_bootstrapped = self._settings.bootstrap_truncated and info["TimeLimit.truncated"]
        if is_bootstrapped:
            with torch.no_grad():
                obs, _ = self.policy.obs_to_tensor(info["terminal_observation"])
                last_value = float(self.policy.predict_values(obs)[0, 0])  # type: ignore[arg-type]
        for name, values in talk.values.items():
            if known := [value for value in values if math.isfinite(value)]:
                self.series[f"rollout/reward/{name}"].append(sum(known))
        if self._settings.has_partner:
            self.series["rollout/partner_failed"].append(float(talk.partner_failed))
            if talk.error is None:
                self.series["rollout/turns"].append(float(len(talk.replies)))
                for cause in get_args(EndedBy):
                    self.series[f"rollout/ended_by/{cause}"].append(float(info["ended_by"] == cause))
        # Each side of a partner that learns is a row of its own, in a group of its own.
        sides = [talk.replies, talk.answers] if self.partner is not None and self.partner.learns else [talk.replies]
        failed = talk.error is not None or any(math.isnan(reply.reward) for side in sides for reply in side)
        self.stats.n_masked += failed
        for i, replies in enumerate(sides):
            place = row + i * len(self.talks)
            group = int(self.n_done[row]) * len(sides) * len(self.talks) + place // self._group_size
            if failed:
                self.keep(self.groups.add(group, None))
                continue
            ended = EndedConversation(replies, len(self.stats.episodes), group, last_value)
            total = float(sum(reply.rewards.sum() for reply in replies))  # type: ignore[union-attr]
            self.stats.episodes.append({"r": total, "l": float(ended.n_tokens)})
            if "partner" in info:  # one of several
                self.series[f"rollout/task_reward/{info['partner']}"].append(total)
            self.stats.samples.append(f"{i}:{info['sample_id']}")
            self.keep(self.groups.add(group, ended))
        self.n_done[row] += 1
        if self._settings.keeps_dialogues and not failed:
            self.dialogues.append(with_tokens(info["dialogue"], talk.replies, self._tokenizer, is_bootstrapped))

    def keep(self, conversations: list[EndedConversation]) -> None:
        """Train on these conversations."""
        for conversation in conversations:
            self.rows.end(conversation)
            self.stats.n_tokens += conversation.n_tokens


@dataclass(eq=False)
class RolloutCollector:
    """Fills a buffer with whole episodes.

    Args:
        task_rewards: Sums the rewards of replies; by default those of the environments.
        mask_failed_rewards: Exclude episodes with a failed reward from training and count them, instead of raising.
        bootstrap_truncated: Add the value of the last state if an episode was truncated: if its last reply was cut at
            the length limit. The limit of turns truncates nothing.
        normalizer: Normalizes and clips the rewards for training. Logged rewards are not affected.
        log_infos: Names of numbers in the environments' infos or in their ``meta_info``. Their means over an iteration
            are logged as ``rollout/info/<name>``.
        info_fns: Functions of a `RolloutRecord` by id; their numbers are logged as ``rollout/info/<id>/<name>``.
        max_turns: Maximum number of turns of a conversation, if it is known. With 1 there is nothing to join, so
            replies are evaluated at once.
        partner: The partner, if it answers from this process.
        has_partner: Whether there is a partner at all, so that its conversations are logged.
        mask_failed_partners: Exclude conversations whose partner failed, instead of raising.
        partner_timeout_s: Time limit of a partner in this process; by default none.
        keeps_dialogues: Whether to keep the conversations of a rollout, which the infos must contain.

    Attributes:
        dialogues: Conversations of the last rollout in the order of their ends, with tokens and rewards before their
            normalization; empty unless they are kept. Those that failed are not among them.
    """

    task_rewards: TaskRewards | None = None
    mask_failed_rewards: bool = False
    bootstrap_truncated: bool = False
    normalizer: RewardNormalizer | None = None
    log_infos: Sequence[str] = ()
    info_fns: Mapping[str, Callable[[RolloutRecord], Mapping[str, float]]] = field(default_factory=dict)
    max_turns: int | None = None
    partner: PartnerService | None = None
    has_partner: bool = False
    mask_failed_partners: bool = False
    partner_timeout_s: float | None = None
    keeps_dialogues: bool = False

    def __post_init__(self) -> None:
        self._known_infos: set[str] = set()  # names of numbers in the infos
        self.dialogues: list[Dialogue] = []

    def add_infos(self, infos: Iterable[Mapping[str, Any]], series: dict[str, list[float]]) -> None:
        """Append the numbers of a batch of infos that are logged to the series ``rollout/info/<name>``."""
        for info in infos if self.log_infos else ():
            numbers = numbers_in(info)
            self._known_infos.update(numbers)
            for name in filter(numbers.__contains__, self.log_infos):
                series[PREFIX + name].append(numbers[name])

    def check_infos(self, found: Mapping[str, float], iteration: int) -> None:
        """Check after the run's first iteration that each name was found; names may be absent later."""
        for name in self.log_infos if iteration == 1 else ():
            if PREFIX + name not in found:
                problem = f"the environments' infos have no number {name!r}{nearest_hint(name, self._known_infos)}"
                known = ", ".join(sorted(self._known_infos)) or "none"
                raise ConfigError(f"logging.log_infos: {problem} (they have: {known})")

    def collect(
        self,
        policy: LMActorCriticPolicy,
        env: VecEnv,
        buffer: SequenceRolloutBuffer,
        observations: dict[str, np.ndarray],
        n_tokens: int,
        on_step: Callable[[dict[str, Any], int, bool], bool],
        groups: GroupSettings | None = None,
        iteration: int = 1,
        join_turns: bool = False,
    ) -> tuple[RolloutStats | None, dict[str, np.ndarray]]:
        """Collect whole episodes until they hold at least ``n_tokens`` agent tokens.

        ``on_step`` is called after every step of the environments with stable-baselines3's local variables at this
        point (``actions``, ``rewards`` of each reply, ``dones``, ``infos``, ``new_obs``), the number of agent tokens so
        far, including unfinished conversations, and whether this was the last step; False stops.

        All environments of a group answer the same prompts and complete the same number of episodes, and the episodes
        to one prompt share a ``group`` in the buffer. The infos are checked in the first iteration. Turns are joined to
        rows if the policy supports it. Returns statistics (``None`` if stopped), and the new observations.
        """
        groups = groups or GroupSettings()
        rollout = Rollout(self, policy, env, observations, groups, iteration, join_turns)
        stats, series = rollout.stats, rollout.series
        turns: list[tuple[dict[str, Any], float]] = []  # infos and rewards, if functions read them
        active = np.ones(env.num_envs, dtype=bool)
        n_wanted: np.ndarray | None = None  # episodes of each environment, known once enough tokens are collected
        with nullcontext() if self.max_turns == 1 else rollout.remembering_prompts():
            while all_reduce_max(int(active.any())) if policy.lockstep else active.any():
                rows = np.flatnonzero(active)
                settled = rollout.step(rows)
                if not len(rows):
                    continue
                self.add_infos([rollout.infos[row] for row in settled], series)
                step_rewards = np.zeros(env.num_envs)
                for row in settled:
                    talk = rollout.talks[row]
                    step_rewards[row] = math.nan if talk.error is not None else talk.replies[-1].reward
                    turns += [(rollout.infos[row], step_rewards[row])] if self.info_fns else []
                    rollout.take(row)
                if n_wanted is None and rollout.groups.is_enough(n_tokens):
                    n_wanted = rollout.n_begun.reshape(-1, groups.size).max(axis=1).repeat(groups.size)
                if n_wanted is not None:
                    active = rollout.n_done < n_wanted
                step: dict[str, Any] = {"actions": rollout.actions, "rewards": step_rewards, "dones": rollout.dones}
                step |= {"infos": rollout.infos, "new_obs": rollout.observations}
                if not on_step(step, rollout.n_spoken, not active.any()):
                    return None, rollout.observations
                check_progress(stats, sum(series["rollout/partner_failed"]))

        self.dialogues = rollout.dialogues
        with rollout.timed("evaluate"):
            rollout.keep(rollout.groups.rest())
            buffer.add(rollout.rows.all())
            gaps = policy.graph_gaps(buffer.replies)
            if buffer.replies.sampler_log_probs is None:  # otherwise what filters change is logged
                series["rollout/sampler_kl"] += gaps
        of_partner = self.partner.logged() if self.partner is not None else {}
        series.update({name: [*numbers] for name, numbers in of_partner.items()})
        if groups.size > 1:
            series["rollout/constant_groups"] = [float(constant) for constant in rollout.groups.found_constant]
        stats.n_spoken = rollout.n_spoken
        returns = [episode["r"] for episode in stats.episodes]
        record = RolloutRecord([info for info, _ in turns], [paid for _, paid in turns], returns, buffer.replies)
        series.update(measured(self.info_fns, record))
        summarize(stats, buffer.replies, series)
        self.check_infos(stats.means, iteration)
        if self.normalizer is not None:
            self.normalizer.normalize(buffer.replies)
        return stats, rollout.observations
