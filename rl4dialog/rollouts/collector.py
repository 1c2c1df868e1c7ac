"""Collecting rollouts: generate, step the workers, score.

While the workers step through the utterances (token rewards, the partner's replies, the next prompts), the main
process computes values and reference log-probabilities of the same utterances.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.core.errors import EnvWorkerError, RewardError
from rl4dialog.envs.utterance_view import PADDING_ACTION
from rl4dialog.policies.base import LMActorCriticPolicy, SequenceBatch
from rl4dialog.policies.generation import Utterances
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer, StoredUtterance


class BatchScorer(Protocol):
    """Scores whole replies in the main process; NaN marks a reply whose reward failed and is to be left out."""

    def __call__(self, infos: list[dict[str, Any]], dones: list[bool]) -> tuple[list[float], dict[str, list[float]]]:
        """Weighted scores of a batch of utterances, and the values of each part."""


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
    kl: float = 0.0
    means: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    episodes: list[dict[str, float]] = field(default_factory=list)


class RolloutCollector:
    """Fills a buffer with whole episodes.

    Args:
        scorer: Scores utterances in the main process, or ``None`` if all rewards come from the workers.
        mask_failed_rewards: Leave episodes whose reward failed out of training and count them, instead of raising.
        bootstrap_truncated: Add the value of the last state where an episode was cut at the length limit.
    """

    def __init__(
        self, scorer: BatchScorer | None = None, mask_failed_rewards: bool = False, bootstrap_truncated: bool = False
    ) -> None:
        self._scorer = scorer
        self._mask_failed_rewards = mask_failed_rewards
        self._bootstrap_truncated = bootstrap_truncated

    def collect(
        self,
        policy: LMActorCriticPolicy,
        env: VecEnv,
        buffer: SequenceRolloutBuffer,
        observations: dict[str, np.ndarray],
        n_tokens: int,
        on_step: Callable[[], bool],
        group_size: int = 1,
    ) -> tuple[RolloutStats | None, dict[str, np.ndarray]]:
        """Collect whole episodes until they hold at least ``n_tokens`` agent tokens.

        Args:
            policy: Speaks.
            env: Utterance views.
            buffer: Empty; receives the utterances.
            observations: Where the environments stand: ``prompt_ids`` (n_envs, P) and so on.
            n_tokens: Agent tokens to collect at least.
            on_step: Called after every step of the environments; False stops.
            group_size: Neighbouring environments that answer the same prompts; each of a group completes as many
                episodes as the others, and the episodes to one prompt share a ``group`` in the buffer.

        Returns:
            Statistics (``None`` if stopped), and where the environments stand now.

        Raises:
            RewardError: If a reward failed, unless failures are masked.
            EnvWorkerError: If a worker process died.
        """
        stats = RolloutStats()
        series: dict[str, list[float]] = defaultdict(list)
        active = np.ones(env.num_envs, dtype=bool)
        running: list[list[StoredUtterance]] = [[] for _ in range(env.num_envs)]
        n_episodes = 0
        n_done = np.zeros(env.num_envs, dtype=int)
        n_wanted: np.ndarray | None = None  # known once there are tokens enough
        while active.any():
            rows = np.flatnonzero(active)
            obs = {name: torch.as_tensor(array[rows], device=policy.device) for name, array in observations.items()}
            started = time.perf_counter()
            utterances = policy.generate(obs)
            stats.seconds["time/generate_s"] += time.perf_counter() - started

            actions = np.full((env.num_envs, policy.max_reply_length), PADDING_ACTION, dtype=np.int64)
            ids = utterances.ids.masked_fill(~utterances.mask, PADDING_ACTION).cpu().numpy()
            actions[rows, : ids.shape[1]] = ids
            try:
                env.step_async(actions)
                started = time.perf_counter()
                stored = _evaluate(policy, obs, utterances)
                stats.seconds["time/evaluate_s"] += time.perf_counter() - started
                started = time.perf_counter()
                observations, _, dones, all_infos = env.step_wait()  # type: ignore[assignment]
            except (EOFError, ConnectionError) as error:
                raise EnvWorkerError(_dead_worker_message(env)) from error
            infos = [all_infos[row] for row in rows]
            done = [bool(dones[row]) for row in rows]
            self._score(stored, infos, done, series)
            stats.seconds["time/score_s"] += time.perf_counter() - started

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
            series["rollout/truncated_mass"].extend(utterances.truncated_mass[utterances.mask].tolist())
            if not on_step():
                return None, observations
            stats.n_tokens = buffer.n_tokens
            if n_wanted is None and stats.n_tokens >= n_tokens:
                n_begun = n_done + np.array([len(utterances_so_far) > 0 for utterances_so_far in running])
                n_wanted = n_begun.reshape(-1, group_size).max(axis=1).repeat(group_size)
            if n_wanted is not None:
                active = n_done < n_wanted
            _check_progress(stats, n_episodes)

        stats.kl = _summarize(stats, buffer, series)
        return stats, observations

    def _score(
        self,
        stored: list[StoredUtterance],
        infos: list[dict[str, Any]],
        dones: list[bool],
        series: dict[str, list[float]],
    ) -> None:
        """Write the task rewards of a batch of utterances: the workers' per token, and the batch's on the last."""
        failed = [i for i, info in enumerate(infos) if "error" in info]
        if failed and not self._mask_failed_rewards:
            raise RewardError(infos[failed[0]]["error"])
        good = [i for i in range(len(infos)) if i not in failed]
        for i in failed:
            stored[i].task_rewards = np.full(len(stored[i].response_ids), np.nan, dtype=np.float32)
        for i in good:
            stored[i].task_rewards = infos[i]["token_rewards"].astype(np.float32)
            for name, value in infos[i]["reward_parts"].items():
                series[f"rollout/reward/{name}"].append(value)
        if self._scorer is None or not good:
            return
        scores, parts = self._scorer([infos[i] for i in good], [dones[i] for i in good])
        for i, score in zip(good, scores, strict=True):
            stored[i].task_rewards[-1] += score
        for name, values in parts.items():
            series[f"rollout/reward/{name}"].extend(value for value in values if np.isfinite(value))


def _evaluate(
    policy: LMActorCriticPolicy, obs: dict[str, torch.Tensor], utterances: Utterances
) -> list[StoredUtterance]:
    """Values and reference log-probabilities of a batch of utterances."""
    batch = SequenceBatch(obs["prompt_ids"], obs["prompt_mask"].bool(), utterances.ids, utterances.mask)
    with torch.no_grad():
        values = policy.predict_sequence_values(batch).cpu().numpy()
        ref_log_probs = policy.reference_log_probs(batch).cpu().numpy()
    ids, log_probs = utterances.ids.cpu().numpy(), utterances.log_probs.cpu().numpy()
    unmasked = utterances.unmasked_log_probs.cpu().numpy()
    prompts, lengths = obs["prompt_ids"].cpu().numpy(), utterances.mask.sum(dim=1).tolist()
    prompt_lengths = obs["prompt_mask"].sum(dim=1).tolist()
    return [
        StoredUtterance(
            prompt_ids=prompts[i, prompts.shape[1] - prompt_lengths[i] :],
            response_ids=ids[i, :n],
            log_probs=log_probs[i, :n],
            unmasked_log_probs=unmasked[i, :n],
            ref_log_probs=ref_log_probs[i, :n],
            values=values[i, :n],
            task_rewards=np.zeros(n, dtype=np.float32),
            episode=-1,
        )
        for i, n in enumerate(lengths)
    ]


def _summarize(stats: RolloutStats, buffer: SequenceRolloutBuffer, series: dict[str, list[float]]) -> float:
    """Fill ``stats.means`` and return the mean KL per token."""
    stored = buffer.utterances
    kl_per_utterance = [u.unmasked_log_probs - u.ref_log_probs for u in stored]
    kl = float(np.concatenate(kl_per_utterance).mean())
    rewards = [episode["r"] for episode in stats.episodes]
    stats.means = {
        "rollout/task_reward": float(np.mean(rewards)),
        "rollout/task_reward_std": float(np.std(rewards)),
        "rollout/kl": kl,
        "rollout/kl_per_reply": float(np.mean([k.sum() for k in kl_per_utterance])),
        "rollout/log_prob": float(np.concatenate([u.log_probs for u in stored]).mean()),
        "rollout/values": float(np.concatenate([u.values for u in stored]).mean()),
        "rollout/reply_length": float(np.mean([len(u.response_ids) for u in stored])),
        "rollout/n_episodes": len(stats.episodes),
        "rollout/tokens": stats.n_tokens,
        "rollout/masked_rewards": stats.n_masked,
        **{name: float(np.mean(values)) for name, values in series.items() if values},
    }
    return kl


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


def _dead_worker_message(env: VecEnv) -> str:
    dead = [
        f"worker {i} (process {process.pid}, exit code {process.exitcode})"
        for i, process in enumerate(getattr(env, "processes", []))
        if not process.is_alive()
    ]
    return (
        f"an environment worker died during a rollout: {', '.join(dead) or 'its connection was closed'}. Its own "
        f"error, if it had one, stands above; exit code -9 means that it was killed, often for lack of memory. "
        f"env.vec_env: dummy runs the environments in this process."
    )
