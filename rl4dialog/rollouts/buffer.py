"""Rollout buffer of whole replies, in place of stable-baselines3's buffer of single steps."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from rl4dialog.functional.advantages import generalized_advantages
from rl4dialog.functional.batching import length_groups
from rl4dialog.functional.distributed import mean_and_std, n_processes, smallest, total_of_numbers
from rl4dialog.functional.kl import kl_penalized_rewards
from rl4dialog.functional.resolution import is_constant, log_probs_agree


@dataclass
class StoredUtterance:
    """One agent utterance of a rollout; arrays are per token, shape (n,).

    Attributes:
        prompt_ids: What stood before it, not padded. Shape (p,).
        response_ids: Its tokens, the ending one included.
        log_probs: Under the policy at rollout time, in nats.
        unmasked_log_probs: The same without a maskable policy's mask; these pay for the KL.
        ref_log_probs: Under the reference.
        values: Of the state before each token.
        task_rewards: Without the KL penalty.
        episode: Utterances of one conversation share this number and stand in order.
        group: Conversations about the same prompt share this number.
        last_value: Value after the last token; 0 unless a truncated episode bootstraps.
        reward_scales: Sum of the absolute values of what each reward was added up from, which decides how exactly it
            is known; ``None`` for rewards that were not added up.
        advantage_scales: The same of the advantages.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    log_probs: np.ndarray
    unmasked_log_probs: np.ndarray
    ref_log_probs: np.ndarray
    values: np.ndarray
    task_rewards: np.ndarray
    episode: int
    group: int = 0
    last_value: float = 0.0
    rewards: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    advantages: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    returns: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    reward_scales: np.ndarray | None = None
    advantage_scales: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    @property
    def scales(self) -> np.ndarray:
        """``reward_scales``; by default the rewards' own absolute values. Shape (n,)."""
        return np.abs(self.rewards) if self.reward_scales is None else self.reward_scales


class SequenceSamples(NamedTuple):
    """A minibatch of B replies with N agent tokens in all; field names are stable-baselines3's.

    Attributes:
        observations: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P), ``response_ids`` (B, T) padded
            on the right, ``response_mask`` (B, T).
        actions: The agent tokens, row by row without padding. Shape (N,), like all that follow.
        old_values: At rollout time.
        old_log_prob: Log-probabilities at rollout time.
        advantages: Not whitened; 0 if the algorithm will whiten them and they are constant but for rounding.
        returns: Targets of the value.
        ref_log_prob: Log-probabilities under the reference.
    """

    observations: dict[str, Tensor]
    actions: Tensor
    old_values: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    returns: Tensor
    ref_log_prob: Tensor

    def split(self, micro_batch_size: int | None = None, fixed_cost: float | None = None) -> Iterator[SequenceSamples]:
        """Cut into parts, each padded to its own longest reply.

        Args:
            micro_batch_size: Replies that a part may have; any number if ``None``.
            fixed_cost: What one more part costs, in token positions: if this is less than the padding that is saved,
                replies of different lengths are parted. ``None`` parts by ``micro_batch_size`` alone.

        Yields:
            Parts whose padding of prompts, too, no row needs.
        """
        prompts, responses = self.observations["prompt_mask"].sum(dim=1), self.observations["response_mask"].sum(dim=1)
        lengths = (prompts + responses).cpu().numpy()
        n_rows = len(lengths)
        if fixed_cost is not None:
            groups = length_groups(lengths, fixed_cost, micro_batch_size)
        else:
            size = micro_batch_size or n_rows
            groups = [np.arange(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
        if len(groups) == 1:
            yield self
            return
        ends = responses.cumsum(dim=0).cpu().numpy()
        starts = ends - responses.cpu().numpy()
        for group in groups:
            rows = self.to_index(group)
            observations = {name: array[rows] for name, array in self.observations.items()}
            tokens = self.to_index(np.concatenate([np.arange(starts[row], ends[row]) for row in group]))
            longest = int(responses[rows].max())
            for name in ("response_ids", "response_mask"):
                observations[name] = observations[name][:, :longest]
            for name in ("prompt_ids", "prompt_mask"):
                observations[name] = observations[name][:, -max(int(prompts[rows].max()), 1) :]
            yield SequenceSamples(observations, *(flat[tokens] for flat in self[1:]))

    def to_index(self, indices: np.ndarray) -> Tensor:
        """Indices on the device of the samples."""
        return torch.as_tensor(indices, device=self.actions.device)


class SequenceRolloutBuffer(RolloutBuffer):
    """Stores whole utterances, computes GAE over the agent tokens of each episode, yields minibatches of utterances.

    Passed to an algorithm as ``rollout_buffer_class``; the arguments are stable-baselines3's.

    Args:
        normalize_rewards: Whiten the rewards (KL penalty included) over the buffer, as RL4LMs' ``norm_reward``.

    Attributes:
        whitened: Whether the algorithm whitens the advantages of each minibatch.
        kl_is_rounding: Whether policy and reference agreed on every token of the iteration, but for rounding; the KL
            penalty is then 0.
        constant_rewards: Whether rewards that are to be whitened were constant but for rounding; they are then 0.
        found_constant: For each set of advantages that was compared within itself, whether it was constant but for
            rounding, and nothing is learned from it.
    """

    whitened = False

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        normalize_rewards: bool = False,
    ) -> None:
        self.utterances: list[StoredUtterance] = []
        self.normalize_rewards = normalize_rewards
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs)

    def reset(self) -> None:
        """Forget all utterances."""
        self.utterances = []
        self.values = np.zeros(0, dtype=np.float32)
        self.returns = np.zeros(0, dtype=np.float32)
        self.kl_is_rounding = self.constant_rewards = False
        self.found_constant: list[bool] = []
        self.full = False

    def add(self, utterance: StoredUtterance) -> None:  # type: ignore[override]
        """Append the next utterance of its episode."""
        self.utterances.append(utterance)

    @property
    def n_tokens(self) -> int:
        """Agent tokens in the buffer."""
        return sum(len(utterance.response_ids) for utterance in self.utterances)

    def compute_rewards(self, kl_coef: float, precision: str = "fp32") -> None:
        """Charge the KL penalty on every token.

        Args:
            kl_coef: Penalty per nat.
            precision: Of the passes that computed the log-probabilities, ``fp32`` or ``bf16``.
        """
        log_probs, ref_log_probs = (
            np.concatenate([getattr(u, name) for u in self.utterances] or [np.zeros(0)])
            for name in ("unmasked_log_probs", "ref_log_probs")
        )
        self.kl_is_rounding = log_probs_agree(log_probs, ref_log_probs, precision)
        if self.kl_is_rounding:
            kl_coef = 0.0
        for u in self.utterances:
            u.rewards = kl_penalized_rewards(u.task_rewards, u.unmasked_log_probs, u.ref_log_probs, kl_coef)
            u.reward_scales = np.abs(u.task_rewards) + np.abs(u.rewards - u.task_rewards)
        if self.normalize_rewards and self.utterances:
            self._normalize()

    def _normalize(self) -> None:
        rewards = np.concatenate([u.rewards for u in self.utterances])
        scales = np.concatenate([u.scales for u in self.utterances])
        mean, std = mean_and_std(rewards)
        self.constant_rewards = is_constant(rewards, scales, of_all_processes=True)
        for u in self.utterances:
            if self.constant_rewards:
                u.rewards, u.reward_scales = np.zeros((2, len(u.rewards)), dtype=np.float32)
            else:
                u.rewards = ((u.rewards - mean) / (std + 1e-8)).astype(np.float32)
                u.reward_scales = (u.scales + abs(mean)) / (std + 1e-8)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """GAE over the agent tokens of each episode, in order, whatever the partner said in between."""
        del last_values, dones  # episodes are whole: each knows the value after its own end
        episodes = self.episodes()
        if episodes:
            lengths = [sum(len(u.response_ids) for u in episode) for episode in episodes]
            rewards, values, scales = np.zeros((3, len(episodes), max(lengths)), dtype=np.float32)
            for row, episode in enumerate(episodes):
                rewards[row, : lengths[row]] = np.concatenate([u.rewards for u in episode])
                values[row, : lengths[row]] = np.concatenate([u.values for u in episode])
                scales[row, : lengths[row]] = np.concatenate([u.scales for u in episode])
            mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
            last = np.array([episode[-1].last_value for episode in episodes])
            advantages, returns = generalized_advantages(rewards, values, mask, last, self.gamma, self.gae_lambda)
            scales += 2 * np.abs(values)  # each is added before its token and subtracted after it
            added_up, _ = generalized_advantages(
                scales, np.zeros_like(values), mask, np.abs(last), self.gamma, self.gae_lambda
            )
            for row, episode in enumerate(episodes):
                ends = np.cumsum([len(u.response_ids) for u in episode])
                for utterance, end in zip(episode, ends, strict=True):
                    tokens = slice(end - len(utterance.response_ids), end)
                    utterance.advantages, utterance.returns = advantages[row, tokens], returns[row, tokens]
                    utterance.advantage_scales = added_up[row, tokens]
            self.values = np.concatenate([u.values for u in self.utterances])
            self.returns = np.concatenate([u.returns for u in self.utterances])
        self.full = True

    def get(self, batch_size: int | None = None) -> Generator[SequenceSamples, None, None]:  # type: ignore[override]
        """Minibatches of whole utterances in random order, each utterance exactly once.

        Args:
            batch_size: Agent tokens per minibatch, of all processes together, as nearly as whole utterances allow;
                minibatches are cut evenly, so there is no small remainder. ``None`` yields everything at once.
        """
        units = self._units()
        order = np.random.permutation(len(units))
        lengths = np.array([sum(len(self.utterances[i].response_ids) for i in units[unit]) for unit in order])
        (n_tokens,) = total_of_numbers(lengths.sum())
        n_batches = 1 if batch_size is None else max(1, round(n_tokens / batch_size))
        # A process that ran out of minibatches before the others would leave them waiting.
        n_batches = smallest(min(n_batches, len(units)))
        # A unit belongs to the minibatch in which its middle token lies.
        middle = np.cumsum(lengths) - lengths / 2
        batch_of = np.minimum((middle * n_batches / lengths.sum()).astype(int), n_batches - 1)
        if len(np.unique(batch_of)) < n_batches:  # one unit is longer than a minibatch
            batch_of = np.arange(len(units)) * n_batches // len(units)
        for batch in range(n_batches):
            yield self._minibatch([self.utterances[i] for unit in order[batch_of == batch] for i in units[unit]])

    def _minibatch(self, utterances: list[StoredUtterance]) -> SequenceSamples:
        """Utterances whose advantages are fit to be whitened."""
        samples = self.collate(utterances)
        if not self.whitened or (samples.advantages.numel() < 2 and n_processes() == 1):  # nothing to compare with
            return samples
        advantages = np.concatenate([u.advantages for u in utterances])
        scales = np.concatenate([u.advantage_scales for u in utterances])
        self.found_constant.append(is_constant(advantages, scales, of_all_processes=True))
        if self.found_constant[-1]:
            samples = samples._replace(advantages=torch.zeros_like(samples.advantages))
        return samples

    def _units(self) -> list[list[int]]:
        """Utterances, by their place in the buffer, that stay together in a minibatch: here each is on its own."""
        return [[i] for i in range(len(self.utterances))]

    def episodes(self) -> list[list[StoredUtterance]]:
        """The utterances of each episode, in order."""
        episodes: dict[int, list[StoredUtterance]] = {}
        for utterance in self.utterances:
            episodes.setdefault(utterance.episode, []).append(utterance)
        return list(episodes.values())

    def collate(self, utterances: list[StoredUtterance]) -> SequenceSamples:
        """Pad utterances to their longest prompt and response."""
        prompt_ids, prompt_mask = _padded([u.prompt_ids for u in utterances], left=True)
        response_ids, response_mask = _padded([u.response_ids for u in utterances], left=False)
        observations = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "response_ids": response_ids,
            "response_mask": response_mask,
        }
        flats = (
            np.concatenate([getattr(u, name) for u in utterances]).astype(np.float32)
            for name in ("values", "log_probs", "advantages", "returns", "ref_log_probs")
        )
        return SequenceSamples(
            {name: self.to_torch(array) for name, array in observations.items()},
            self.to_torch(response_ids[response_mask]),
            *(self.to_torch(flat) for flat in flats),
        )


def _padded(rows: list[np.ndarray], left: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ids of rows padded to the longest, int64, and True where they are real. Shapes (B, L), (B, L)."""
    longest = max(map(len, rows))
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=bool)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, True
    return ids, mask
