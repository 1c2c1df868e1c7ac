"""Collection of rollouts: generate, step the workers, score.

While the workers step through the replies (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities: of the same replies, or of conversations that have ended if
their turns are joined to rows. Each step produces a batch of replies; complete episodes go into the buffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.types import Dialogue
from rl4dialog.functional.distributed import all_reduce_max
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.conversations import Conversations, evaluate
from rl4dialog.rollouts.conversing import remembering_prompts, speak
from rl4dialog.rollouts.groups import GroupSettings
from rl4dialog.rollouts.info_numbers import InfoNumbers
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.rollouts.running_conversations import RunningConversations
from rl4dialog.rollouts.statistics import RolloutStats, check_progress, summarize
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.text.tokenizer import tokenizer_hash


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
        keeps_dialogues: bool = False,
    ) -> None:
        self._keeps_dialogues = keeps_dialogues
        self.dialogues: list[Dialogue] = []
        self.partner, self._has_partner = partner, has_partner
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
        partners_end = self.partner.side.end_of_turn if self.partner is not None and self.partner.learns else None
        running = RunningConversations(
            conversations, env.num_envs, groups, self._has_partner, self._keeps_dialogues, partners_end
        )
        stats, series = running.stats, running.series
        active = np.ones(env.num_envs, dtype=bool)
        n_wanted: np.ndarray | None = None  # episodes of each environment, known once enough tokens are collected
        with nullcontext() if self._max_turns == 1 else remembering_prompts(policy, self.partner):
            while all_reduce_max(int(active.any())) if policy.lockstep else active.any():
                rows = np.flatnonzero(active)
                if not len(rows):
                    _keep_in_step(policy, observations)
                    continue
                speech = speak(policy, observations, rows, self.partner, self._partner_timeout_s)
                running.is_running[rows] = True
                stats.seconds["time/generate_s"] += speech.agent_seconds
                if self.partner is not None:
                    stats.seconds["time/partner_s"] += speech.partner_seconds
                env.step_async(speech.actions)
                started = time.perf_counter()
                running.add(speech)
                stats.seconds["time/evaluate_s"] += time.perf_counter() - started
                started = time.perf_counter()
                observations, _, dones, all_infos = env.step_wait()  # type: ignore[assignment]
                # Turns that are complete, or failed; the others wait for a partner in this process.
                settled = [int(row) for row in rows if "reward_parts" in all_infos[row] or "error" in all_infos[row]]
                infos = [all_infos[row] for row in settled]
                for row, info in zip(settled, infos, strict=True):
                    speech.explain(row, info)
                self._score(task_rewards, running, settled, infos, dones, iteration)
                stats.seconds["time/score_s"] += time.perf_counter() - started
                self._info_numbers.add(infos, series)
                step_rewards = np.zeros(env.num_envs)
                for row, info in zip(settled, infos, strict=True):
                    if replies := running.replies[row]:  # none if the partner failed to open the conversation
                        step_rewards[row] = running.earned[replies[-1]].sum()
                        running.cut[replies[-1]] = bool(info.get("utterance_truncated"))
                    running.count_turn(info)
                    if dones[row]:
                        is_bootstrapped = self._bootstrap_truncated and info["TimeLimit.truncated"]
                        last_value = _terminal_value(policy, info["terminal_observation"]) if is_bootstrapped else 0.0
                        running.end(row, info, last_value, is_bootstrapped)
                if n_wanted is None and running.groups.is_enough(n_tokens):
                    n_wanted = running.n_begun.reshape(-1, groups.size).max(axis=1).repeat(groups.size)
                if n_wanted is not None:
                    active = running.n_done < n_wanted
                step = {"actions": speech.actions, "rewards": step_rewards, "dones": dones, "infos": all_infos}
                if not on_step({**step, "new_obs": observations}, running.n_spoken, not active.any()):
                    return None, observations
                check_progress(stats, sum(series["rollout/partner_failed"]))

        started = time.perf_counter()
        running.keep(running.groups.rest())
        if self._keeps_dialogues:
            self.dialogues = running.dialogues(tokenizer_hash(policy.end_of_turn.tokenizer))
        buffer.add(conversations.rows())
        stats.seconds["time/evaluate_s"] += time.perf_counter() - started
        of_partner = self.partner.logged() if self.partner is not None else {}
        series.update({name: [*numbers] for name, numbers in of_partner.items()})
        if groups.size > 1:
            series["rollout/constant_groups"] = [float(constant) for constant in running.groups.found_constant]
        summarize(stats, buffer.replies, series)
        self._info_numbers.check(stats.means, iteration)
        if self.normalizer is not None:
            self.normalizer.normalize(buffer.replies)
        return stats, observations

    def _score(
        self,
        task_rewards: TaskRewards,
        running: RunningConversations,
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
            else:
                running.stats.last_failure = info["error"]
        if not good:
            return
        earned, replies = running.earned, [running.replies[rows[i]] for i in good]
        lengths = [len(earned[numbers[-1]]) for numbers in replies]
        found, earlier, values = task_rewards(
            [infos[i] for i in good], lengths, [bool(dones[rows[i]]) for i in good], iteration
        )
        running.stats.last_failure = task_rewards.last_failure or running.stats.last_failure
        for i, per_token, payments in zip(good, found, earlier, strict=True):
            running.pay(rows[i], per_token, payments)
        for name, each in values.items():
            if name in task_rewards.weight_names:
                running.series[f"rollout/reward/{name}"].extend(each)
                continue
            for i, value in zip(good, each, strict=True):
                if np.isfinite(value):
                    running.earned_by_part[rows[i]][name] += value


def _keep_in_step(policy: LMActorCriticPolicy, observations: dict[str, np.ndarray]) -> None:
    """Run the same forward passes as the other processes and discard the results."""
    obs = {name: torch.as_tensor(array[:1], device=policy.device) for name, array in observations.items()}
    evaluate(policy, policy.generate(obs))


def _terminal_value(policy: LMActorCriticPolicy, observation: dict[str, np.ndarray]) -> float:
    with torch.no_grad():
        obs, _ = policy.obs_to_tensor(observation)
        return float(policy.predict_values(obs)[0, 0])  # type: ignore[arg-type]
