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
from typing import Any, get_args

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.types import Dialogue, EndedBy
from rl4dialog.functional.distributed import all_reduce_max
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.conversations import Conversations, EndedConversation, Groups, GroupSettings, evaluate
from rl4dialog.rollouts.conversing import SaidTokens, Speech, remembering_prompts, speak, with_tokens
from rl4dialog.rollouts.statistics import InfoNumbers, RolloutStats, check_progress, measure_sampler, summarize
from rl4dialog.rollouts.task_rewards import RewardNormalizer, TaskRewards
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import tokenizer_hash


class RunningConversations:
    """Conversations in progress and their rewards.

    Args:
        conversations: Takes the replies, and the conversations that have ended.
        n_envs: Number of environments.
        groups: How environments are grouped.
        has_partner: Whether there is a partner, so that its conversations are logged.
        keeps_dialogues: Whether to keep the texts of conversations, which infos must contain.
        partners_end: Detects the ends of the utterances of a partner that learns; ``None`` if it does not.

    Attributes:
        stats: Statistics so far.
        series: Numbers to average, by key.
        replies: For each environment, the numbers of the replies of its conversation; if the partner learns, its
            replies follow, for each environment.
        earned: Task rewards per token of each reply; NaN until it is answered, or if a reward failed.
        cut: Whether each reply was cut at the length limit.
        earned_by_part: For each environment, the raw values of the parts of the reward in its conversation.
        is_running: Whether a conversation has begun and not ended, per environment; its partner may have begun it.
        n_done: Number of conversations that have ended, per environment.
        n_spoken: Number of agent tokens.
        groups: Conversations by prompt.
    """

    def __init__(
        self,
        conversations: Conversations,
        n_envs: int,
        groups: GroupSettings,
        has_partner: bool,
        keeps_dialogues: bool = False,
        partners_end: EndOfTurn | None = None,
    ) -> None:
        self._n_envs, self._partners_end = n_envs, partners_end
        self._conversations, self._group_size, self._has_partner = conversations, groups.size, has_partner
        self._keeps_dialogues = keeps_dialogues
        self._dialogues: list[tuple[EndedConversation, Dialogue, str, bool]] = []
        self.groups = Groups(groups)
        self.stats = RolloutStats()
        self.series: dict[str, list[float]] = defaultdict(list)
        self.replies: list[list[int]] = [[] for _ in range(n_envs if partners_end is None else 2 * n_envs)]
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
        """Add what the agent said, and a partner that learns."""
        self._add(speech.replies, speech.agent_rows)
        if speech.partner_replies is not None:
            assert self._partners_end is not None
            n_before = len(self.cut)
            self._add(speech.partner_replies, self._n_envs + speech.partner_rows)
            said = speech.partner_replies.per_row("response_ids")
            self.cut[n_before:] = [not self._partners_end.is_end(ids.tolist()) for ids in said]

    def _add(self, said: Replies | None, places: np.ndarray) -> None:
        """Add utterances to the replies at these places."""
        if said is not None:
            n_before = torch.tensor([len(self.replies[place]) for place in places])
            said.turn = said.response_mask * n_before[:, None].to(said.response_mask.device)
        replies = self._conversations.add(said)
        if replies is None:
            return
        measure_sampler(replies, self.series)
        for place, n in zip(places, replies.response_mask.sum(dim=1).tolist(), strict=True):
            self.replies[place].append(len(self.earned))
            self.earned.append(np.full(n, np.nan, dtype=np.float32))
            self.cut.append(False)
            self.n_spoken += n

    def pay(self, row: int, per_token: np.ndarray, earlier: np.ndarray) -> None:
        """Pay the last reply of an environment per token, and all or none of its earlier replies.

        A partner that learns gets the same for each turn.
        """
        numbers = self.replies[row]
        self.earned[numbers[-1]] = per_token.astype(np.float32)
        for number, payment in zip(numbers, earlier, strict=False):
            self.earned[number][-1] += payment
        answers = self._answers(row)
        for number in answers:
            self.earned[number] = np.nan_to_num(self.earned[number])
        if not answers:
            return
        self.earned[answers[-1]][-1] += per_token.sum()
        # Every reply of the agent is answered, and the partner may have opened the conversation.
        for number, payment in zip(answers[-len(numbers) :], earlier, strict=False):
            self.earned[number][-1] += payment

    def _answers(self, row: int) -> list[int]:
        """Numbers of the replies of a partner that learns, in the conversation of an environment."""
        return self.replies[self._n_envs + row] if len(self.replies) > self._n_envs else []

    def count_turn(self, info: dict[str, Any]) -> None:
        """Log a turn that is complete."""
        if "error" in info:
            return
        self.series["rollout/cut_replies"].append(float(info["utterance_truncated"]))
        if self._has_partner:
            self.series["rollout/context_dropped"].append(float(info["context_dropped"]))
            self.series["rollout/empty_replies"].append(float(not info["gen_text"]))
            self.series["rollout/partner_echo"].append(float(info["partner_echoes"]))

    def end(self, row: int, info: dict[str, Any], last_value: float, is_bootstrapped: bool = False) -> None:
        """End the conversation of an environment; it is trained on unless a reward failed or its group is left out."""
        places = range(row, len(self.replies), self._n_envs)
        by_side = [self.replies[place] for place in places]
        for place in places:
            self.replies[place] = []
        self.is_running[row] = False
        for name, value in self.earned_by_part[row].items():
            self.series[f"rollout/reward/{name}"].append(value)
        self.earned_by_part[row] = defaultdict(float)
        if self._has_partner:
            self.series["rollout/partner_failed"].append(float(info.get("partner_failed", False)))
            if "error" not in info:
                self.series["rollout/turns"].append(float(len(by_side[0])))
                for cause in get_args(EndedBy):
                    self.series[f"rollout/ended_by/{cause}"].append(float(info["ended_by"] == cause))
        groups = [self.n_done[row] * len(self.replies) + place // self._group_size for place in places]
        self.n_done[row] += 1
        rewards = [[self.earned[number] for number in numbers] for numbers in by_side]
        failed = any(not side or any(np.isnan(per_token).any() for per_token in side) for side in rewards)
        self.stats.n_masked += failed
        for place, numbers, earned, group in zip(places, by_side, rewards, groups, strict=True):
            if failed:
                self.keep(self.groups.add(group, None))
                continue
            cut, episode = [self.cut[number] for number in numbers], len(self.stats.episodes)
            conversation = EndedConversation(numbers, earned, cut, episode, group, last_value)
            total = float(sum(per_token.sum() for per_token in earned))
            self.stats.episodes.append({"r": total, "l": float(conversation.n_tokens)})
            if self._keeps_dialogues and place == row:
                self._dialogues.append((conversation, info["dialogue"], info["prompt_text"], is_bootstrapped))
            self.keep(self.groups.add(group, conversation))

    def dialogues(self, tokenizer: str) -> list[Dialogue]:
        """All conversations that ended without a failure, with tokens, also those of groups that are left out."""
        found = []
        for ended, dialogue, prompt, is_bootstrapped in self._dialogues:
            replies = self._conversations.replies_of(np.array(ended.numbers))
            tokens = zip(replies.per_row("response_ids"), replies.per_row("log_probs"), ended.earned, strict=True)
            said = [SaidTokens(ids, log_probs, earned) for ids, log_probs, earned in tokens]
            found.append(with_tokens(dialogue, said, prompt, tokenizer, is_bootstrapped))
        return found

    def keep(self, conversations: list[EndedConversation]) -> None:
        """Train on these conversations."""
        for conversation in conversations:
            self._conversations.end(conversation)
            self.stats.n_tokens += conversation.n_tokens


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
