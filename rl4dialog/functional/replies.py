"""Whole replies after their prompts, and the numbers of their tokens: the one batch from the sampler to the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.functional.batching import FIXED_COST, PASS_SIZE, length_groups
from rl4dialog.functional.masks import padded


@dataclass
class Replies:
    """B prompts and replies. Numbers are ``None`` until they are known, and mean nothing where no agent token is.

    Attributes:
        prompt_ids: Padded on the left. Shape (B, P).
        prompt_mask: True at real tokens. Shape (B, P).
        response_ids: Padded on the right. Shape (B, T).
        response_mask: True at the agent's tokens, which are trained. Shape (B, T).
        token_mask: True at all real tokens, which fill each row from the left; by default the agent's alone. Shape
            (B, T), like all numbers down to ``sampler_log_probs``.
        log_probs: Under the policy's distribution when the reply was sampled (before top-k and the like), in nats.
        unmasked_log_probs: The same without a maskable policy's mask; these pay for the KL.
        ref_log_probs: Under the reference.
        values: Of the state before each token.
        task_rewards: Without the KL penalty.
        rewards: With it.
        reward_scales: Sum of the absolute values of what each reward was added up from, which decides how exactly it
            is known.
        advantages: Not whitened.
        advantage_scales: Of the advantages what ``reward_scales`` is of the rewards.
        returns: Targets of the value.
        truncated_mass: Probability that the sampler's filters cut off; ``None`` where another backend samples, which
            does not tell.
        sampler_log_probs: In what another backend drew the token from, filters included; otherwise ``None``.
        episode: Replies of one conversation share this number and stand in order. Shape (B,).
        group: Conversations about the same prompt share this number. Shape (B,).
        last_value: Value after the last token; 0 unless a truncated episode bootstraps. Shape (B,).
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    token_mask: Tensor = None  # type: ignore[assignment]
    log_probs: Tensor | None = None
    unmasked_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    task_rewards: Tensor | None = None
    rewards: Tensor | None = None
    reward_scales: Tensor | None = None
    advantages: Tensor | None = None
    advantage_scales: Tensor | None = None
    returns: Tensor | None = None
    truncated_mass: Tensor | None = None
    sampler_log_probs: Tensor | None = None
    episode: Tensor | None = None
    group: Tensor | None = None
    last_value: Tensor | None = None

    def __post_init__(self) -> None:
        if self.token_mask is None:
            self.token_mask = self.response_mask

    @classmethod
    def from_ids(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> Replies:
        """Replies from the token ids of each prompt and response."""
        tensors = *padded(prompts, left=True), *padded(responses)
        return cls(*(tensor.to(device) for tensor in tensors))

    @classmethod
    def from_observations(cls, obs: Mapping[str, Tensor]) -> Replies:
        """Replies from what a policy reads.

        Args:
            obs: The :attr:`observations` of some; or those of an environment of single tokens, with ``context_ids``
                (B, T) in place of ``response_ids``: the one agent token of a row is then the next one.
        """
        prompts = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
        if "response_ids" in obs:
            masks = (obs[name].bool() for name in ("response_mask", "token_mask") if name in obs)
            return cls(*prompts, obs["response_ids"].long(), *masks)
        response_ids = torch.nn.functional.pad(obs["context_ids"].long(), (0, 1))
        places = torch.arange(response_ids.shape[1], device=response_ids.device)
        lengths = obs["context_mask"].bool().sum(dim=1, keepdim=True)
        return cls(*prompts, response_ids, response_mask=places == lengths, token_mask=places <= lengths)

    @classmethod
    def concatenate(cls, batches: Sequence[Replies]) -> Replies:
        """The rows of several batches, which have the same numbers."""
        n_prompt = max(batch.prompt_ids.shape[1] for batch in batches)
        n_response = max(batch.response_ids.shape[1] for batch in batches)

        def widened(name: str, tensor: Tensor) -> Tensor:
            if tensor.dim() == 1:
                return tensor
            missing = (n_prompt if name.startswith("prompt") else n_response) - tensor.shape[1]
            return torch.nn.functional.pad(tensor, (missing, 0) if name.startswith("prompt") else (0, missing))

        parts = [batch._map(widened) for batch in batches]
        return parts[0]._map(lambda name, _: torch.cat([getattr(part, name) for part in parts]))

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def __getitem__(self, rows: Tensor) -> Replies:
        """Some of the rows, without columns that none of them needs."""
        n_prompt = max(int(self.prompt_mask[rows].sum(dim=1).max()), 1)
        n_response = int(self.token_mask[rows].sum(dim=1).max())

        def chosen(name: str, tensor: Tensor) -> Tensor:
            if tensor.dim() == 1:
                return tensor[rows]
            return tensor[rows, -n_prompt:] if name.startswith("prompt") else tensor[rows, :n_response]

        return self._map(chosen)

    def to(self, device: torch.device | str) -> Replies:
        """The same on another device."""
        return self._map(lambda _, tensor: tensor.to(device))

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> Replies:
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return Replies(**{name: change(name, tensor) for name, tensor in known.items() if tensor is not None})

    # -- numbers of the N agent tokens, row by row without padding ------------------------------------------------

    @cached_property
    def _places(self) -> Tensor:
        return self.response_mask.flatten().nonzero().squeeze(1)

    @property
    def n_tokens(self) -> int:
        """N, the agent tokens of all rows."""
        return len(self._places)

    def flat(self, name: str) -> Tensor:
        """One of the attributes at the agent tokens. Shape (N,)."""
        numbers: Tensor = getattr(self, name)
        return numbers.flatten()[self._places]

    def scattered(self, flat: Tensor | np.ndarray) -> Tensor:
        """Numbers of the agent tokens at their places, and 0 elsewhere. Shape (N,) -> (B, T)."""
        flat, mask = torch.as_tensor(flat), self.response_mask
        return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat)

    def per_row(self, numbers: str | Tensor) -> list[np.ndarray]:
        """An attribute, or numbers of shape (N,), at the agent tokens of each row: B arrays of shape (n,)."""
        flat = self.flat(numbers) if isinstance(numbers, str) else numbers
        ends = self.response_mask.sum(dim=1).cumsum(dim=0).cpu().numpy()
        return np.split(flat.cpu().numpy(), ends[:-1])

    def row_episodes(self) -> np.ndarray:
        """Which episode each row is of, counted from 0 without gaps. Shape (B,)."""
        assert self.episode is not None
        return np.unique(self.episode.numpy(), return_inverse=True)[1]

    def token_episodes(self) -> np.ndarray:
        """Which episode each agent token is of, counted from 0 without gaps. Shape (N,)."""
        return np.repeat(self.row_episodes(), self.response_mask.sum(dim=1).numpy())

    # -- parts ----------------------------------------------------------------------------------------------------

    def split(self, micro_batch_size: int | None = None, fixed_cost: float | None = None) -> Iterable[Replies]:
        """Cut into parts, each padded to its own longest row.

        Args:
            micro_batch_size: Rows that a part may have; any number if ``None``.
            fixed_cost: What one more part costs, in token positions: if this is less than the padding that is saved,
                rows of different lengths are parted. ``None`` parts by ``micro_batch_size`` alone.
        """
        groups = self._groups(fixed_cost, micro_batch_size)
        return [self] if len(groups) == 1 else (self[rows] for rows in groups)

    def _groups(self, fixed_cost: float | None, size: int | None) -> Sequence[Tensor]:
        """Rows that go together; arguments as for :meth:`split`."""
        if fixed_cost is None:
            return torch.arange(len(self), device=self.prompt_ids.device).split(size or len(self))
        lengths = self.prompt_mask.sum(dim=1) + self.token_mask.sum(dim=1)
        groups = length_groups(lengths.cpu().numpy(), fixed_cost, size)
        return [torch.as_tensor(group, device=self.prompt_ids.device) for group in groups]

    def computed(self, numbers_of: Callable[[Replies], Tensor], lockstep: bool = False) -> Tensor:
        """Numbers (B, T) of passes without gradients: of rows of like length, or in lockstep of all rows at once."""
        device = self.prompt_ids.device
        found = torch.zeros(self.response_mask.shape, device=device)
        fixed_cost, size = (None, None) if lockstep else (FIXED_COST.get(device.type, 0), PASS_SIZE.get(device.type))
        for rows in self._groups(fixed_cost, size):
            part = self[rows]
            found[rows, : part.response_mask.shape[1]] = numbers_of(part)
        return found

    @property
    def observations(self) -> dict[str, Tensor]:
        """The ids and masks, which are what a policy reads."""
        names = ("prompt_ids", "prompt_mask", "response_ids", "response_mask", "token_mask")
        return {name: getattr(self, name) for name in names}


def _at_agent_tokens(name: str) -> Any:
    return property(lambda samples: samples.replies.flat(name))


@dataclass(frozen=True)
class ReplySamples:
    """A minibatch of replies as ``train()`` reads it; names are those of stable-baselines3's ``RolloutBufferSamples``.

    All numbers are of the N agent tokens, row by row without padding, each of shape (N,).

    Attributes:
        replies: Where they are.
        actions: The agent tokens.
        old_values: At rollout time.
        old_log_prob: Log-probabilities at rollout time.
        advantages: Not whitened; 0 if the algorithm will whiten them and they are constant but for rounding.
        returns: Targets of the value.
        ref_log_prob: Log-probabilities under the reference.
    """

    replies: Replies

    actions = _at_agent_tokens("response_ids")
    old_values = _at_agent_tokens("values")
    old_log_prob = _at_agent_tokens("log_probs")
    advantages = _at_agent_tokens("advantages")
    returns = _at_agent_tokens("returns")
    ref_log_prob = _at_agent_tokens("ref_log_probs")

    @property
    def observations(self) -> dict[str, Tensor]:
        """``prompt_ids`` (B, P) padded on the left, ``response_ids`` (B, T) padded on the right, and masks of both."""
        return self.replies.observations

    def with_advantages(self, advantages: Tensor) -> ReplySamples:
        """The same with other advantages. Shape (N,)."""
        return ReplySamples(replace(self.replies, advantages=self.replies.scattered(advantages)))

    def split(self, micro_batch_size: int | None = None, fixed_cost: float | None = None) -> Iterator[ReplySamples]:
        """Micro-batches; see :meth:`Replies.split`."""
        return map(ReplySamples, self.replies.split(micro_batch_size, fixed_cost))
