"""Collection of rollouts: generate, step the workers, score.

While the workers step through the replies (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities: of the same replies, or of conversations that have ended if
their turns are joined to rows. Each step produces a batch of replies; complete episodes go into the buffer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.types import EndedBy
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max, all_reduce_numbers
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.statistics import ratio_standard_error, repeated_share
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.conversations import Conversations, EndedConversation, evaluate
from rl4dialog.rollouts.conversing import Speech, remembering_prompts, speak
from rl4dialog.rollouts.groups import Groups, GroupSettings
from rl4dialog.rollouts.info_numbers import InfoNumbers
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.rollouts.task_rewards import TaskRewards


@dataclass
class RolloutStats:
    """Statistics of one iteration's rollout.

    Attributes:
        n_tokens: Number of agent tokens to train on.
        n_masked: Number of episodes excluded because a reward or the partner failed.
        means: Averages to log, by key (``rollout/...``).
        seconds: Duration by phase (``time/..._s``).
        episodes: Reward and length of each episode, in the format of stable-baselines3's monitor.
    """

    n_tokens: int = 0
    n_masked: int = 0
    means: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    episodes: list[dict[str, float]] = field(default_factory=list)


class RolloutCollector:
    """Fills a buffer with whole episodes.

    Args:
        task_rewards: Sums the rewards of replies; by default those of the environments.
        mask_failed_rewards: Exclude episodes with a failed reward from training and count them, instead of raising.
        bootstrap_truncated: Add the value of the last state if an episode was truncated at the length limit.
        normalizer: Normalizes and clips the rewards for training. Logged rewards are not affected.
        log_infos: Names of numbers in the environments' infos or in their ``meta_info``. Their means over an iteration
            are logged as ``rollout/info/<name>``.
        max_turns: Maximum number of turns of a conversation, if it is known. With 1 there is nothing to join, so
            replies are evaluated at once.
        partner: The partner, if it answers from this process.
        has_partner: Whether there is a partner at all, so that its conversations are logged.
        mask_failed_partners: Exclude conversations whose partner failed, instead of raising.
        partner_timeout_s: Time limit of a partner in this process; by default none.
    """

    def __init__(
        self,
        task_rewards: TaskRewards | None = None,
        mask_failed_rewards: bool = False,
        bootstrap_truncated: bool = False,
        normalizer: RewardNormalizer | None = None,
        log_infos: Sequence[str] = (),
        max_turns: int | None = None,
        partner: PartnerService | None = None,
        has_partner: bool = False,
        mask_failed_partners: bool = False,
        partner_timeout_s: float | None = None,
    ) -> None:
        self._partner, self._has_partner = partner, has_partner
        self._mask_failed_partners, self._partner_timeout_s = mask_failed_partners, partner_timeout_s
        self._info_numbers = InfoNumbers(log_infos)
        self._task_rewards = task_rewards
        self._mask_failed_rewards = mask_failed_rewards
        self._bootstrap_truncated = bootstrap_truncated
        self._max_turns = max_turns
        self.normalizer = normalizer

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

        Args:
            policy: The policy that generates the replies.
            env: Vectorized utterance views.
            buffer: Empty buffer. The replies are added at the end.
            observations: Current observations: ``prompt_ids`` (n_envs, P) and so on.
            n_tokens: Minimum number of agent tokens to collect.
            on_step: Called after every step of the environments with three arguments: stable-baselines3's local
                variables at this point (``actions``, ``rewards`` of each reply, ``dones``, ``infos``, ``new_obs``),
                the number of agent tokens so far, including unfinished conversations, and whether this was the last
                step. False stops.
            groups: How environments are grouped; by default not at all. All environments of a group answer the same
                prompts and complete the same number of episodes, and the episodes to one prompt share a ``group`` in
                the buffer.
            iteration: Iteration number, from 1, for scheduled reward weights. The infos are checked in the first one.
            join_turns: Join the turns of a conversation to rows, if the policy supports it.

        Returns:
            Statistics (``None`` if stopped), and the new observations.

        Raises:
            PartnerError: If the partner failed, unless failures are masked.
            RewardError: If a reward failed, unless failures are masked.
            ConfigError: If a number to be logged is missing in the infos.
            EnvWorkerError: If a worker process died, or an environment raised.
        """
        groups = groups or GroupSettings()
        task_rewards = self._task_rewards or TaskRewards(env.get_attr("reward_terms", 0)[0])
        conversations = Conversations(policy, join_turns and policy.joins_turns and self._max_turns != 1)
        rollout = _Rollout(conversations, env.num_envs, groups, self._has_partner)
        stats, series = rollout.stats, rollout.series
        active = np.ones(env.num_envs, dtype=bool)
        n_wanted: np.ndarray | None = None  # episodes of each environment, known once enough tokens are collected
        with nullcontext() if self._max_turns == 1 else remembering_prompts(policy, self._partner):
            while all_reduce_max(int(active.any())) if policy.lockstep else active.any():
                rows = np.flatnonzero(active)
                if not len(rows):
                    _keep_in_step(policy, observations)
                    continue
                speech = speak(policy, observations, rows, self._partner, self._partner_timeout_s)
                rollout.is_running[rows] = True
                stats.seconds["time/generate_s"] += speech.agent_seconds
                if self._partner is not None:
                    stats.seconds["time/partner_s"] += speech.partner_seconds
                env.step_async(speech.actions)
                started = time.perf_counter()
                rollout.add(speech)
                stats.seconds["time/evaluate_s"] += time.perf_counter() - started
                started = time.perf_counter()
                observations, _, dones, all_infos = env.step_wait()  # type: ignore[assignment]
                # Turns that are complete, or failed; the others wait for a partner in this process.
                settled = [int(row) for row in rows if "reward_parts" in all_infos[row] or "error" in all_infos[row]]
                infos = [all_infos[row] for row in settled]
                for row, info in zip(settled, infos, strict=True):
                    speech.explain(row, info)
                self._score(task_rewards, rollout, settled, infos, dones, iteration)
                stats.seconds["time/score_s"] += time.perf_counter() - started
                self._info_numbers.add(infos, series)
                step_rewards = np.zeros(env.num_envs)
                for row, info in zip(settled, infos, strict=True):
                    if replies := rollout.running[row]:  # none if the partner failed to open the conversation
                        step_rewards[row] = rollout.earned[replies[-1]].sum()
                        rollout.cut[replies[-1]] = bool(info.get("utterance_truncated"))
                    rollout.count_turn(info)
                    if dones[row]:
                        is_bootstrapped = self._bootstrap_truncated and info["TimeLimit.truncated"]
                        last_value = _terminal_value(policy, info["terminal_observation"]) if is_bootstrapped else 0.0
                        rollout.end(row, info, last_value)
                if n_wanted is None and rollout.groups.is_enough(n_tokens):
                    n_wanted = rollout.n_begun.reshape(-1, groups.size).max(axis=1).repeat(groups.size)
                if n_wanted is not None:
                    active = rollout.n_done < n_wanted
                step = {"actions": speech.actions, "rewards": step_rewards, "dones": dones, "infos": all_infos}
                if not on_step({**step, "new_obs": observations}, rollout.n_spoken, not active.any()):
                    return None, observations
                _check_progress(stats, sum(series["rollout/partner_failed"]))

        started = time.perf_counter()
        rollout.keep(rollout.groups.rest())
        buffer.add(conversations.rows())
        stats.seconds["time/evaluate_s"] += time.perf_counter() - started
        if groups.size > 1:
            series["rollout/constant_groups"] = [float(constant) for constant in rollout.groups.found_constant]
        _summarize(stats, buffer.replies, series)
        self._info_numbers.check(stats.means, iteration)
        if self.normalizer is not None:
            self.normalizer.normalize(buffer.replies)
        return stats, observations

    def _score(
        self,
        task_rewards: TaskRewards,
        rollout: _Rollout,
        rows: list[int],
        infos: list[dict[str, Any]],
        dones: np.ndarray,
        iteration: int,
    ) -> None:
        """Fill in the task rewards of the last reply in each of these environments; they stay NaN if they failed."""
        good = []
        for i, info in enumerate(infos):
            if "error" not in info:
                good.append(i)
            elif info.get("partner_failed", False):
                if not self._mask_failed_partners:
                    raise PartnerError(info["error"])
            elif not self._mask_failed_rewards:
                raise RewardError(info["error"])
        if not good:
            return
        earned, replies = rollout.earned, [rollout.running[rows[i]] for i in good]
        lengths = [len(earned[numbers[-1]]) for numbers in replies]
        found, earlier, values = task_rewards(
            [infos[i] for i in good], lengths, [bool(dones[rows[i]]) for i in good], iteration
        )
        for numbers, per_token, payments in zip(replies, found, earlier, strict=True):
            earned[numbers[-1]] = per_token.astype(np.float32)
            for number, payment in zip(numbers, payments, strict=False):  # none, or one per earlier reply
                earned[number][-1] += payment
        for name, each in values.items():
            if name in task_rewards.weight_names:
                rollout.series[f"rollout/reward/{name}"].extend(each)
                continue
            for i, value in zip(good, each, strict=True):
                if np.isfinite(value):
                    rollout.earned_by_part[rows[i]][name] += value


class _Rollout:
    """Conversations in progress and their rewards.

    Args:
        conversations: Takes the replies, and the conversations that have ended.
        n_envs: Number of environments.
        groups: How environments are grouped.
        has_partner: Whether there is a partner, so that its conversations are logged.

    Attributes:
        stats: Statistics so far.
        series: Numbers to average, by key.
        running: For each environment, the numbers of the replies of its conversation.
        earned: Task rewards per token of each reply; NaN until it is answered, or if a reward failed.
        cut: Whether each reply was cut at the length limit.
        earned_by_part: For each environment, the raw values of the parts of the reward in its conversation.
        is_running: Whether a conversation has begun and not ended, per environment; its partner may have begun it.
        n_done: Number of conversations that have ended, per environment.
        n_spoken: Number of agent tokens.
        groups: Conversations by prompt.
    """

    def __init__(self, conversations: Conversations, n_envs: int, groups: GroupSettings, has_partner: bool) -> None:
        self._conversations, self._group_size, self._has_partner = conversations, groups.size, has_partner
        self.groups = Groups(groups)
        self.stats = RolloutStats()
        self.series: dict[str, list[float]] = defaultdict(list)
        self.running: list[list[int]] = [[] for _ in range(n_envs)]
        self.earned: list[np.ndarray] = []
        self.cut: list[bool] = []
        self.earned_by_part: list[dict[str, float]] = [defaultdict(float) for _ in range(n_envs)]
        self.is_running = np.zeros(n_envs, dtype=bool)
        self.n_done = np.zeros(n_envs, dtype=int)
        self.n_spoken = 0

    @property
    def n_begun(self) -> np.ndarray:
        """Number of conversations that have begun, per environment."""
        return self.n_done + self.is_running

    def add(self, speech: Speech) -> None:
        """Add what the agent said."""
        if speech.replies is not None:
            n_before = torch.tensor([len(self.running[row]) for row in speech.agent_rows])
            mask = speech.replies.response_mask
            speech.replies.turn = mask * n_before[:, None].to(mask.device)
        replies = self._conversations.add(speech.replies)
        if replies is None:
            return
        _measure_sampler(replies, self.series)
        for row, n in zip(speech.agent_rows, replies.response_mask.sum(dim=1).tolist(), strict=True):
            self.running[row].append(len(self.earned))
            self.earned.append(np.full(n, np.nan, dtype=np.float32))
            self.cut.append(False)
            self.n_spoken += n

    def count_turn(self, info: dict[str, Any]) -> None:
        """Log a turn that is complete."""
        if "error" in info:
            return
        self.series["rollout/cut_replies"].append(float(info["utterance_truncated"]))
        if self._has_partner:
            self.series["rollout/context_dropped"].append(float(info["context_dropped"]))
            self.series["rollout/empty_replies"].append(float(not info["gen_text"]))
            self.series["rollout/partner_echo"].append(float(info["partner_echoes"]))

    def end(self, row: int, info: dict[str, Any], last_value: float) -> None:
        """End the conversation of an environment; it is trained on unless a reward failed or its group is left out."""
        numbers, self.running[row], self.is_running[row] = self.running[row], [], False
        for name, value in self.earned_by_part[row].items():
            self.series[f"rollout/reward/{name}"].append(value)
        self.earned_by_part[row] = defaultdict(float)
        if self._has_partner:
            self.series["rollout/partner_failed"].append(float(info.get("partner_failed", False)))
            if "error" not in info:
                self.series["rollout/turns"].append(float(len(numbers)))
                for cause in get_args(EndedBy):
                    self.series[f"rollout/ended_by/{cause}"].append(float(info["ended_by"] == cause))
        group = self.n_done[row] * len(self.running) + row // self._group_size
        self.n_done[row] += 1
        rewards = [self.earned[number] for number in numbers]
        if not rewards or any(np.isnan(per_token).any() for per_token in rewards):
            self.stats.n_masked += 1
            self.keep(self.groups.add(group, None))
            return
        cut, episode = [self.cut[number] for number in numbers], len(self.stats.episodes)
        conversation = EndedConversation(numbers, rewards, cut, episode, group, last_value)
        total = float(sum(per_token.sum() for per_token in rewards))
        self.stats.episodes.append({"r": total, "l": float(conversation.n_tokens)})
        self.keep(self.groups.add(group, conversation))

    def keep(self, conversations: list[EndedConversation]) -> None:
        """Train on these conversations."""
        for conversation in conversations:
            self._conversations.end(conversation)
            self.stats.n_tokens += conversation.n_tokens


def _keep_in_step(policy: LMActorCriticPolicy, observations: dict[str, np.ndarray]) -> None:
    """Run the same forward passes as the other processes and discard the results."""
    obs = {name: torch.as_tensor(array[:1], device=policy.device) for name, array in observations.items()}
    evaluate(policy, policy.generate(obs))


def _measure_sampler(replies: Replies, series: dict[str, list[float]]) -> None:
    """Measure the difference between the sampler's distribution and the policy's."""
    if replies.truncated_mass is not None:
        series["rollout/truncated_mass"].extend(replies.flat("truncated_mass").tolist())
    if replies.sampler_log_probs is not None:
        gaps = replies.flat("sampler_log_probs") - replies.flat("log_probs")
        # The mean estimates the KL divergence of the sampler from the policy, per token.
        series["rollout/sampler_kl"].extend(gaps.tolist())
        largest = series["rollout/sampler_max_ratio"]
        largest[:] = [max([*largest, gaps.abs().max().exp().item()])]


def _summarize(stats: RolloutStats, replies: Replies, series: dict[str, list[float]]) -> None:
    """Fill ``stats.means``, averaged over all processes."""
    kl = replies.flat("unmasked_log_probs") - replies.flat("ref_log_probs")
    ids = replies.per_reply("response_ids")
    mine = {
        **series,
        "rollout/task_reward": [episode["r"] for episode in stats.episodes],
        "rollout/kl": kl.numpy(),
        "rollout/kl_per_reply": [row.sum() for row in replies.per_reply(kl)],
        "rollout/log_prob": replies.flat("log_probs").numpy(),
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
    stats.means = {
        **{name: float(np.mean(values)) for name, values in numbers.items() if values},
        "rollout/task_reward_std": float(np.std(numbers["rollout/task_reward"])),
        "rollout/kl_se": ratio_standard_error(numbers["rollout/kl_per_reply"], numbers["rollout/reply_length"]),
        "rollout/distinct_replies": len(distinct) / len(numbers["rollout/reply_length"]),
        **{f"rollout/{name}": int(n) for name, n in zip(counts, all_reduce_numbers(*counts.values()), strict=True)},
    }


def _check_progress(stats: RolloutStats, n_partner_failed: float) -> None:
    """Raise if all conversations fail, which would otherwise loop forever."""
    if stats.n_masked < 100 or stats.episodes:
        return
    if n_partner_failed > stats.n_masked / 2:
        raise PartnerError(
            f"the partner failed in {n_partner_failed:g} of the first {stats.n_masked} conversations, and none of them "
            f"can be trained on; set env.args.partner_on_error: raise to see the error"
        )
    raise RewardError(
        f"the reward failed for each of the first {stats.n_masked} episodes, so there is nothing to train on; "
        f"set reward_fn.on_error: raise to see the error"
    )


def _terminal_value(policy: LMActorCriticPolicy, observation: dict[str, np.ndarray]) -> float:
    with torch.no_grad():
        obs, _ = policy.obs_to_tensor(observation)
        return float(policy.predict_values(obs)[0, 0])  # type: ignore[arg-type]
