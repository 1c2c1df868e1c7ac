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
from rl4dialog.functional.kl import kl_penalized_rewards


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


class SequenceSamples(NamedTuple):
    """A minibatch of B replies with N agent tokens in all; field names are stable-baselines3's.

    Attributes:
        observations: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P), ``response_ids`` (B, T) padded
            on the right, ``response_mask`` (B, T).
        actions: The agent tokens, row by row without padding. Shape (N,), like all that follow.
        old_values: At rollout time.
        old_log_prob: Log-probabilities at rollout time.
        advantages: Not whitened.
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

    def split(self, micro_batch_size: int | None) -> Iterator[SequenceSamples]:
        """Cut into parts of at most ``micro_batch_size`` replies; ``None`` yields the whole."""
        lengths = self.observations["response_mask"].sum(dim=1).tolist()
        if micro_batch_size is None or micro_batch_size >= len(lengths):
            yield self
            return
        first_token = 0
        for start in range(0, len(lengths), micro_batch_size):
            rows = slice(start, start + micro_batch_size)
            tokens = slice(first_token, first_token + sum(lengths[rows]))
            first_token = tokens.stop
            longest = max(lengths[rows])
            observations = {
                name: array[rows, :longest] if name.startswith("response") else array[rows]
                for name, array in self.observations.items()
            }
            yield SequenceSamples(observations, *(flat[tokens] for flat in self[1:]))


class SequenceRolloutBuffer(RolloutBuffer):
    """Stores whole utterances, computes GAE over the agent tokens of each episode, yields minibatches of utterances.

    Passed to an algorithm as ``rollout_buffer_class``; the arguments are stable-baselines3's.

    Args:
        normalize_rewards: Whiten the rewards (KL penalty included) over the buffer, as RL4LMs' ``norm_reward``.
    """

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
        self.full = False

    def add(self, utterance: StoredUtterance) -> None:  # type: ignore[override]
        """Append the next utterance of its episode."""
        self.utterances.append(utterance)

    @property
    def n_tokens(self) -> int:
        """Agent tokens in the buffer."""
        return sum(len(utterance.response_ids) for utterance in self.utterances)

    def compute_rewards(self, kl_coef: float) -> None:
        """Charge the KL penalty on every token."""
        for utterance in self.utterances:
            utterance.rewards = kl_penalized_rewards(
                utterance.task_rewards, utterance.unmasked_log_probs, utterance.ref_log_probs, kl_coef
            )
        if self.normalize_rewards and self.utterances:
            every = np.concatenate([utterance.rewards for utterance in self.utterances])
            for utterance in self.utterances:
                utterance.rewards = (utterance.rewards - every.mean()) / (every.std() + 1e-8)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """GAE over the agent tokens of each episode, in order, whatever the partner said in between."""
        del last_values, dones  # episodes are whole: each knows the value after its own end
        episodes = self._episodes()
        if episodes:
            lengths = [sum(len(u.response_ids) for u in episode) for episode in episodes]
            rewards, values = np.zeros((2, len(episodes), max(lengths)), dtype=np.float32)
            for row, episode in enumerate(episodes):
                rewards[row, : lengths[row]] = np.concatenate([u.rewards for u in episode])
                values[row, : lengths[row]] = np.concatenate([u.values for u in episode])
            mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
            last = np.array([episode[-1].last_value for episode in episodes])
            advantages, returns = generalized_advantages(rewards, values, mask, last, self.gamma, self.gae_lambda)
            for row, episode in enumerate(episodes):
                ends = np.cumsum([len(u.response_ids) for u in episode])
                for utterance, end in zip(episode, ends, strict=True):
                    tokens = slice(end - len(utterance.response_ids), end)
                    utterance.advantages, utterance.returns = advantages[row, tokens], returns[row, tokens]
            self.values = np.concatenate([u.values for u in self.utterances])
            self.returns = np.concatenate([u.returns for u in self.utterances])
        self.full = True

    def get(self, batch_size: int | None = None) -> Generator[SequenceSamples, None, None]:  # type: ignore[override]
        """Minibatches of whole utterances in random order, each utterance exactly once.

        Args:
            batch_size: Agent tokens per minibatch, as nearly as whole utterances allow; minibatches are cut evenly,
                so there is no small remainder. ``None`` yields everything at once.
        """
        units = self._units()
        order = np.random.permutation(len(units))
        lengths = np.array([sum(len(self.utterances[i].response_ids) for i in units[unit]) for unit in order])
        n_batches = 1 if batch_size is None else max(1, round(lengths.sum() / batch_size))
        # A unit belongs to the minibatch in which its middle token lies.
        middle = np.cumsum(lengths) - lengths / 2
        batch_of = np.minimum((middle * n_batches / lengths.sum()).astype(int), n_batches - 1)
        for batch in range(n_batches):
            chosen = [i for unit in order[batch_of == batch] for i in units[unit]]
            if chosen:
                yield self.collate([self.utterances[i] for i in chosen])

    def _units(self) -> list[list[int]]:
        """Utterances, by their place in the buffer, that stay together in a minibatch: here each is on its own."""
        return [[i] for i in range(len(self.utterances))]

    def _episodes(self) -> list[list[StoredUtterance]]:
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
