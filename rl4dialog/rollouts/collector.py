"""Collection of rollouts: generate, step the workers, score.

While the workers step through the replies (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities: of the same replies, or of conversations that have ended if
their turns are joined to rows. Each step produces a batch of replies; complete episodes go into the buffer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import RewardError
from rl4dialog.envs.utterance_view import PADDING_ACTION
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max, all_reduce_numbers
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.statistics import ratio_standard_error, repeated_share
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.conversations import Conversations, evaluate
from rl4dialog.rollouts.info_numbers import InfoNumbers
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.rollouts.task_rewards import TaskRewards


@dataclass
class RolloutStats:
    """Statistics of one iteration's rollout.

    Attributes:
        n_tokens: Number of agent tokens.
        n_masked: Number of episodes excluded because a reward failed.
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
    """

    def __init__(
        self,
        task_rewards: TaskRewards | None = None,
        mask_failed_rewards: bool = False,
        bootstrap_truncated: bool = False,
        normalizer: RewardNormalizer | None = None,
        log_infos: Sequence[str] = (),
        max_turns: int | None = None,
    ) -> None:
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
        group_size: int = 1,
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
            group_size: Number of consecutive environments that answer the same prompts. All environments of a group
                complete the same number of episodes, and the episodes to one prompt share a ``group`` in the buffer.
            iteration: Iteration number, from 1, for scheduled reward weights. The infos are checked in the first one.
            join_turns: Join the turns of a conversation to rows, if the policy supports it.

        Returns:
            Statistics (``None`` if stopped), and the new observations.

        Raises:
            RewardError: If a reward failed, unless failures are masked.
            ConfigError: If a number to be logged is missing in the infos.
            EnvWorkerError: If a worker process died, or an environment raised.
        """
        task_rewards = self._task_rewards or TaskRewards(env.get_attr("reward_terms", 0)[0])
        stats = RolloutStats()
        series: dict[str, list[float]] = defaultdict(list)
        active = np.ones(env.num_envs, dtype=bool)
        conversations = Conversations(policy, join_turns and policy.joins_turns and self._max_turns != 1)
        earned: list[np.ndarray] = []  # task rewards per token of each reply so far
        running: list[list[int]] = [[] for _ in range(env.num_envs)]  # reply indices
        n_episodes = n_spoken = 0
        n_done = np.zeros(env.num_envs, dtype=int)
        n_wanted: np.ndarray | None = None  # known once enough tokens are collected
        while all_reduce_max(int(active.any())) if policy.lockstep else active.any():
            rows = np.flatnonzero(active)
            if not len(rows):
                _keep_in_step(policy, observations)
                continue
            obs = {name: torch.as_tensor(array[rows], device=policy.device) for name, array in observations.items()}
            started = time.perf_counter()
            replies = policy.generate(obs)
            stats.seconds["time/generate_s"] += time.perf_counter() - started

            actions = np.full((env.num_envs, policy.max_reply_length), PADDING_ACTION, dtype=np.int64)
            ids = replies.response_ids.masked_fill(~replies.response_mask, PADDING_ACTION).cpu().numpy()
            actions[rows, : ids.shape[1]] = ids
            env.step_async(actions)
            started = time.perf_counter()
            replies = conversations.evaluate(replies)
            n_before = torch.tensor([len(running[row]) for row in rows])
            replies.turn = replies.response_mask * n_before[:, None]
            stats.seconds["time/evaluate_s"] += time.perf_counter() - started
            started = time.perf_counter()
            observations, _, dones, all_infos = env.step_wait()  # type: ignore[assignment]
            infos = [all_infos[row] for row in rows]
            done = [bool(dones[row]) for row in rows]
            lengths = replies.response_mask.sum(dim=1).tolist()
            rewards = self._score(task_rewards, lengths, infos, done, series, iteration)
            replies.task_rewards = replies.scattered(np.concatenate(rewards))
            conversations.add(replies)
            stats.seconds["time/score_s"] += time.perf_counter() - started

            self._info_numbers.add(infos, series)
            for row, per_token, info, is_done in zip(rows, rewards, infos, done, strict=True):
                running[row].append(len(earned))
                earned.append(per_token)
                if "error" not in info:
                    series["rollout/cut_replies"].append(float(info["utterance_truncated"]))
                if not is_done:
                    continue
                episode, running[row] = running[row], []
                group = n_done[row] * env.num_envs + row // group_size
                n_done[row] += 1
                if any(np.isnan(earned[number]).any() for number in episode):
                    stats.n_masked += 1
                    continue
                last_value = 0.0
                if self._bootstrap_truncated and info["TimeLimit.truncated"]:
                    last_value = _terminal_value(policy, info["terminal_observation"])
                conversations.end(episode, n_episodes, group, last_value)
                n_episodes += 1
                n_tokens_of_episode = sum(len(earned[number]) for number in episode)
                stats.n_tokens += n_tokens_of_episode
                total_reward = float(sum(earned[number].sum() for number in episode))
                stats.episodes.append({"r": total_reward, "l": float(n_tokens_of_episode)})
            _measure_sampler(replies, series)
            step_rewards = np.zeros(env.num_envs)
            step_rewards[rows] = [per_token.sum() for per_token in rewards]
            step = {"actions": actions, "rewards": step_rewards, "dones": dones, "infos": all_infos}
            if n_wanted is None and stats.n_tokens >= n_tokens:
                n_begun = n_done + np.array([len(numbers) > 0 for numbers in running])
                n_wanted = n_begun.reshape(-1, group_size).max(axis=1).repeat(group_size)
            if n_wanted is not None:
                active = n_done < n_wanted
            n_spoken += sum(lengths)
            if not on_step({**step, "new_obs": observations}, n_spoken, not active.any()):
                return None, observations
            _check_progress(stats, n_episodes)

        started = time.perf_counter()
        buffer.add(conversations.rows())
        stats.seconds["time/evaluate_s"] += time.perf_counter() - started
        _summarize(stats, buffer.replies, series)
        self._info_numbers.check(stats.means, iteration)
        if self.normalizer is not None:
            self.normalizer.normalize(buffer.replies)
        return stats, observations

    def _score(
        self,
        task_rewards: TaskRewards,
        lengths: list[int],
        infos: list[dict[str, Any]],
        dones: list[bool],
        series: dict[str, list[float]],
        iteration: int,
    ) -> list[np.ndarray]:
        """Task rewards per token of replies of these lengths; NaN for failed rewards."""
        failed = [i for i, info in enumerate(infos) if "error" in info]
        if failed and not self._mask_failed_rewards:
            raise RewardError(infos[failed[0]]["error"])
        good = [i for i in range(len(infos)) if i not in failed]
        found = [np.full(length, np.nan, dtype=np.float32) for length in lengths]
        if not good:
            return found
        rewards, _, parts = task_rewards(
            [infos[i] for i in good], [lengths[i] for i in good], [dones[i] for i in good], iteration
        )
        for i, per_token in zip(good, rewards, strict=True):
            found[i] = per_token.astype(np.float32)
        for name, values in parts.items():
            series[f"rollout/reward/{name}"].extend(value for value in values if np.isfinite(value))
        return found


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


def _check_progress(stats: RolloutStats, n_episodes: int) -> None:
    """Raise if all rewards fail, which would otherwise loop forever."""
    if stats.n_masked >= 100 and n_episodes == 0:
        raise RewardError(
            f"the reward failed for each of the first {stats.n_masked} episodes, so there is nothing to train on; "
            f"set reward_fn.on_error: raise to see the error"
        )


def _terminal_value(policy: LMActorCriticPolicy, observation: dict[str, np.ndarray]) -> float:
    with torch.no_grad():
        obs, _ = policy.obs_to_tensor(observation)
        return float(policy.predict_values(obs)[0, 0])  # type: ignore[arg-type]
