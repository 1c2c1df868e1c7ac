"""Collecting rollouts: generate, step the workers, score.

While the workers step through the utterances (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities of the same utterances.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import RewardError
from rl4dialog.envs.utterance_view import PADDING_ACTION
from rl4dialog.functional.distributed import gather, largest, total_of_numbers
from rl4dialog.functional.statistics import ratio_standard_error, repeated_share
from rl4dialog.policies.base import LMActorCriticPolicy, SequenceBatch
from rl4dialog.policies.generation import Utterances
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer, StoredUtterance
from rl4dialog.rollouts.info_numbers import InfoNumbers
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer


class BatchScorer(Protocol):
    """Adds up what utterances earn, in the workers and in the main process."""

    def __call__(
        self, infos: list[dict[str, Any]], dones: list[bool], iteration: int
    ) -> tuple[list[np.ndarray], dict[str, list[float]]]:
        """Rewards per token of each utterance, and the values of each part, by name.

        NaN marks a reply whose reward failed and is to be left out.
        """


@dataclass
class RolloutStats:
    """What one iteration collected.

    Attributes:
        n_tokens: Agent tokens.
        n_masked: Episodes left out because a reward failed.
        means: Averages for the log, by key (``rollout/...``).
        seconds: Time spent by phase (``time/..._s``).
        episodes: Reward and length of each episode, as stable-baselines3's monitor reports them.
    """

    n_tokens: int = 0
    n_masked: int = 0
    means: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    episodes: list[dict[str, float]] = field(default_factory=list)


class RolloutCollector:
    """Fills a buffer with whole episodes.

    Args:
        scorer: Adds up the rewards of utterances; by default they are what the environments say.
        mask_failed_rewards: Leave episodes whose reward failed out of training and count them, instead of raising.
        bootstrap_truncated: Add the value of the last state where an episode was cut at the length limit.
        normalizer: Normalizes and clips the rewards that are trained on; what is logged is as it was earned.
        log_infos: Names of numbers in the environments' infos, or in their ``meta_info``; their means over an iteration
            are logged as ``rollout/info/<name>``.
    """

    def __init__(
        self,
        scorer: BatchScorer | None = None,
        mask_failed_rewards: bool = False,
        bootstrap_truncated: bool = False,
        normalizer: RewardNormalizer | None = None,
        log_infos: Sequence[str] = (),
    ) -> None:
        self._info_numbers = InfoNumbers(log_infos)
        self._scorer = scorer
        self._mask_failed_rewards = mask_failed_rewards
        self._bootstrap_truncated = bootstrap_truncated
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
    ) -> tuple[RolloutStats | None, dict[str, np.ndarray]]:
        """Collect whole episodes until they hold at least ``n_tokens`` agent tokens.

        Args:
            policy: Speaks.
            env: Utterance views.
            buffer: Empty; receives the utterances.
            observations: Where the environments stand: ``prompt_ids`` (n_envs, P) and so on.
            n_tokens: Agent tokens to collect at least.
            on_step: Called after every step of the environments with what stable-baselines3 has as local variables
                then: ``actions``, ``rewards`` (of each utterance), ``dones``, ``infos``, ``new_obs``; with the number
                of agent tokens so far, those of conversations under way included; and with whether this was the last
                step. False stops.
            group_size: Neighbouring environments that answer the same prompts; each of a group completes as many
                episodes as the others, and the episodes to one prompt share a ``group`` in the buffer.
            iteration: Counted from 1, for weights of rewards that change with it; in the first, the infos are checked.

        Returns:
            Statistics (``None`` if stopped), and where the environments stand now.

        Raises:
            RewardError: If a reward failed, unless failures are masked.
            ConfigError: If the infos have no number that is to be logged.
            EnvWorkerError: If a worker process died, or an environment raised.
        """
        stats = RolloutStats()
        series: dict[str, list[float]] = defaultdict(list)
        active = np.ones(env.num_envs, dtype=bool)
        running: list[list[StoredUtterance]] = [[] for _ in range(env.num_envs)]
        n_episodes = n_spoken = 0
        n_done = np.zeros(env.num_envs, dtype=int)
        n_wanted: np.ndarray | None = None  # known once there are tokens enough
        while largest(int(active.any())) if policy.lockstep else active.any():
            rows = np.flatnonzero(active)
            if not len(rows):
                _keep_in_step(policy, observations)
                continue
            obs = {name: torch.as_tensor(array[rows], device=policy.device) for name, array in observations.items()}
            started = time.perf_counter()
            utterances = policy.generate(obs)
            stats.seconds["time/generate_s"] += time.perf_counter() - started

            actions = np.full((env.num_envs, policy.max_reply_length), PADDING_ACTION, dtype=np.int64)
            ids = utterances.ids.masked_fill(~utterances.mask, PADDING_ACTION).cpu().numpy()
            actions[rows, : ids.shape[1]] = ids
            env.step_async(actions)
            started = time.perf_counter()
            stored = _evaluate(policy, obs, utterances)
            stats.seconds["time/evaluate_s"] += time.perf_counter() - started
            started = time.perf_counter()
            observations, _, dones, all_infos = env.step_wait()  # type: ignore[assignment]
            infos = [all_infos[row] for row in rows]
            done = [bool(dones[row]) for row in rows]
            self._score(stored, infos, done, series, iteration)
            stats.seconds["time/score_s"] += time.perf_counter() - started

            self._info_numbers.add(infos, series)
            for row, utterance, info, is_done in zip(rows, stored, infos, done, strict=True):
                running[row].append(utterance)
                if "error" not in info:
                    series["rollout/cut_replies"].append(float(info["utterance_truncated"]))
                if not is_done:
                    continue
                episode, running[row] = running[row], []
                group = n_done[row] * env.num_envs + row // group_size
                n_done[row] += 1
                if any(np.isnan(u.task_rewards).any() for u in episode):
                    stats.n_masked += 1
                    continue
                if self._bootstrap_truncated and info["TimeLimit.truncated"]:
                    episode[-1].last_value = _terminal_value(policy, info["terminal_observation"])
                for u in episode:
                    u.episode, u.group = n_episodes, group
                    buffer.add(u)
                n_episodes += 1
                stats.episodes.append(
                    {
                        "r": float(sum(u.task_rewards.sum() for u in episode)),
                        "l": float(sum(len(u.response_ids) for u in episode)),
                    }
                )
            _measure_sampler(utterances, series)
            step_rewards = np.zeros(env.num_envs)
            step_rewards[rows] = [u.task_rewards.sum() for u in stored]
            step = {"actions": actions, "rewards": step_rewards, "dones": dones, "infos": all_infos}
            stats.n_tokens = buffer.n_tokens
            if n_wanted is None and stats.n_tokens >= n_tokens:
                n_begun = n_done + np.array([len(utterances_so_far) > 0 for utterances_so_far in running])
                n_wanted = n_begun.reshape(-1, group_size).max(axis=1).repeat(group_size)
            if n_wanted is not None:
                active = n_done < n_wanted
            n_spoken += sum(len(u.response_ids) for u in stored)
            if not on_step({**step, "new_obs": observations}, n_spoken, not active.any()):
                return None, observations
            _check_progress(stats, n_episodes)

        _summarize(stats, buffer, series)
        self._info_numbers.check(stats.means, iteration)
        if self.normalizer is not None:
            self.normalizer.normalize(buffer.episodes())
        return stats, observations

    def _score(
        self,
        stored: list[StoredUtterance],
        infos: list[dict[str, Any]],
        dones: list[bool],
        series: dict[str, list[float]],
        iteration: int,
    ) -> None:
        """Write the task rewards of a batch of utterances."""
        failed = [i for i, info in enumerate(infos) if "error" in info]
        if failed and not self._mask_failed_rewards:
            raise RewardError(infos[failed[0]]["error"])
        good = [i for i in range(len(infos)) if i not in failed]
        for i in failed:
            stored[i].task_rewards = np.full(len(stored[i].response_ids), np.nan, dtype=np.float32)
        if not good:
            return
        rewards: list[np.ndarray] = [infos[i]["token_rewards"] for i in good]
        parts: dict[str, list[float]] = {}
        if self._scorer is not None:
            rewards, parts = self._scorer([infos[i] for i in good], [dones[i] for i in good], iteration)
        for i, per_token in zip(good, rewards, strict=True):
            stored[i].task_rewards = per_token.astype(np.float32)
        for name, values in parts.items():
            series[f"rollout/reward/{name}"].extend(value for value in values if np.isfinite(value))


def _evaluate(
    policy: LMActorCriticPolicy, obs: dict[str, torch.Tensor], utterances: Utterances
) -> list[StoredUtterance]:
    """Values and reference log-probabilities of a batch of utterances."""
    batch = SequenceBatch(obs["prompt_ids"], obs["prompt_mask"].bool(), utterances.ids, utterances.mask)
    values, ref_log_probs = (torch.zeros(batch.response_mask.shape, device=policy.device) for _ in range(2))
    with torch.no_grad():
        for rows, part in batch.by_length(policy.lockstep):
            n_columns = part.response_mask.shape[1]
            values[rows, :n_columns] = policy.predict_sequence_values(part)
            ref_log_probs[rows, :n_columns] = policy.reference_log_probs(part)
    ids, mask = utterances.ids.cpu().numpy(), utterances.mask.cpu().numpy()
    per_token = {
        "log_probs": utterances.log_probs,
        "unmasked_log_probs": utterances.unmasked_log_probs,
        "ref_log_probs": ref_log_probs,
        "values": values,
    }
    arrays = {name: tensor.cpu().numpy() for name, tensor in per_token.items()}
    prompts, prompt_mask = obs["prompt_ids"].cpu().numpy(), obs["prompt_mask"].bool().cpu().numpy()
    return [
        StoredUtterance(
            prompt_ids=prompts[i, prompt_mask[i]],
            response_ids=ids[i, mask[i]],
            task_rewards=np.zeros(mask[i].sum(), dtype=np.float32),
            episode=-1,
            **{name: array[i, mask[i]] for name, array in arrays.items()},
        )
        for i in range(len(ids))
    ]


def _keep_in_step(policy: LMActorCriticPolicy, observations: dict[str, np.ndarray]) -> None:
    """Run what the other processes run, for nothing."""
    obs = {name: torch.as_tensor(array[:1], device=policy.device) for name, array in observations.items()}
    _evaluate(policy, obs, policy.generate(obs))


def _measure_sampler(utterances: Utterances, series: dict[str, list[float]]) -> None:
    """How far what was sampled from is from the policy's distribution."""
    mask = utterances.mask
    if utterances.truncated_mass is not None:
        series["rollout/truncated_mass"].extend(utterances.truncated_mass[mask].tolist())
    if utterances.sampler_log_probs is not None:
        gaps = (utterances.sampler_log_probs - utterances.log_probs)[mask]
        # Their mean estimates the KL divergence of the sampler from the policy, per token.
        series["rollout/sampler_kl"].extend(gaps.tolist())
        largest = series["rollout/sampler_max_ratio"]
        largest[:] = [max([*largest, gaps.abs().max().exp().item()])]


def _summarize(stats: RolloutStats, buffer: SequenceRolloutBuffer, series: dict[str, list[float]]) -> None:
    """Fill ``stats.means``, over all processes."""
    stored = buffer.utterances
    kl_per_utterance = [u.unmasked_log_probs - u.ref_log_probs for u in stored]
    mine = {
        **series,
        "rollout/task_reward": [episode["r"] for episode in stats.episodes],
        "rollout/kl": np.concatenate(kl_per_utterance),
        "rollout/kl_per_reply": [kl.sum() for kl in kl_per_utterance],
        "rollout/log_prob": np.concatenate([u.log_probs for u in stored]),
        "rollout/values": np.concatenate([u.values for u in stored]),
        "rollout/reply_length": [len(u.response_ids) for u in stored],
        "rollout/repeated_trigrams": [repeated_share(u.response_ids) for u in stored],
    }
    numbers: dict[str, list[Any]] = defaultdict(list)
    replies: set[bytes] = set()
    for theirs, their_replies in gather((mine, {u.response_ids.tobytes() for u in stored})):
        replies |= their_replies
        for name, values in theirs.items():
            numbers[name].extend(values)
    counts = {"n_episodes": len(stats.episodes), "tokens": stats.n_tokens, "masked_rewards": stats.n_masked}
    stats.means = {
        **{name: float(np.mean(values)) for name, values in numbers.items() if values},
        "rollout/task_reward_std": float(np.std(numbers["rollout/task_reward"])),
        "rollout/kl_se": ratio_standard_error(numbers["rollout/kl_per_reply"], numbers["rollout/reply_length"]),
        "rollout/distinct_replies": len(replies) / len(numbers["rollout/reply_length"]),
        **{f"rollout/{name}": int(n) for name, n in zip(counts, total_of_numbers(*counts.values()), strict=True)},
    }


def _check_progress(stats: RolloutStats, n_episodes: int) -> None:
    """Rewards that always fail must not be collected for ever."""
    if stats.n_masked >= 100 and n_episodes == 0:
        raise RewardError(
            f"the reward failed for each of the first {stats.n_masked} episodes, so there is nothing to train on; "
            f"reward_fn.on_error: raise shows why"
        )


def _terminal_value(policy: LMActorCriticPolicy, observation: dict[str, np.ndarray]) -> float:
    with torch.no_grad():
        obs, _ = policy.obs_to_tensor(observation)
        return float(policy.predict_values(obs)[0, 0])  # type: ignore[arg-type]
