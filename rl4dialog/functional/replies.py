"""Batches of whole replies with their prompts and per-token numbers, used from the sampler to the loss."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl4dialog.core.errors import ModelError
from rl4dialog.functional.masks import FIXED_COST, length_groups, padded, rows_per_pass


@dataclass
class Row:
    """Token ids of a prompt and of all that followed it."""

    prompt: list[int]
    response: list[int] = field(default_factory=list)  # ids of the replies, and of what is between them
    is_agents: list[bool] = None  # type: ignore[assignment]  # whether each of these is the agent's; by default all are
    n_turns: int = 1  # number of turns that were joined

    def __post_init__(self) -> None:
        if self.is_agents is None:
            self.is_agents = [True] * len(self.response)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.response


class OnHost(NamedTuple):
    """Prompts, and where the tokens of B rows are, in main memory: what is counted or compared waits for no device."""

    prompt_ids: np.ndarray  # Shape (B, P)
    prompt: np.ndarray  # real tokens. Shape (B, P)
    response: np.ndarray  # the agent's tokens. Shape (B, T)
    token: np.ndarray  # all real tokens. Shape (B, T)
    secret_ids: np.ndarray | None = None  # Shape (B, S)
    secret: np.ndarray | None = None  # real tokens. Shape (B, S)

    def mapped(self, change: Callable[[str, np.ndarray], np.ndarray]) -> OnHost:
        """The arrays after a change of each, given its name."""
        return self._replace(**{name: change(name, each) for name, each in self._asdict().items() if each is not None})


class Observations(dict[str, Tensor]):
    """Ids and masks of replies, the input of a policy, with what of them is in main memory."""

    on_host: OnHost


@dataclass
class Replies:
    """B prompts and replies. Numbers are ``None`` until they are computed, and undefined outside agent tokens.

    Prompts are padded on the left, shape (B, P), replies on the right, shape (B, T), as all numbers of tokens. Secrets,
    which only a critic may read, are padded on the left, shape (B, S).
    """

    prompt_ids: Tensor
    prompt_mask: Tensor  # True at real tokens
    response_ids: Tensor
    response_mask: Tensor  # True at the agent's tokens, which are trained on
    token_mask: Tensor = None  # type: ignore[assignment]  # True at all real tokens; by default only the agent's
    turn: Tensor | None = None  # number of the turn within the conversation, from 0
    log_probs: Tensor | None = None  # under the policy's distribution at sampling, before filters, in nats
    unmasked_log_probs: Tensor | None = None  # the same without a maskable policy's mask, for the KL penalty
    ref_log_probs: Tensor | None = None  # under the reference
    values: Tensor | None = None  # of the state before each token
    cut: Tensor | None = None  # whether the reply was cut at the length limit: 1 or 0 at all of its tokens
    task_rewards: Tensor | None = None  # without the KL penalty
    rewards: Tensor | None = None  # with the KL penalty
    kl_penalties: Tensor | None = None  # of each token, which rewards subtract
    reward_scales: Tensor | None = None  # sum of the absolute values of a reward's summands, for its precision
    advantages: Tensor | None = None  # not whitened
    advantage_scales: Tensor | None = None  # like reward_scales, for the advantages
    returns: Tensor | None = None  # targets of the values
    loss_weights: Tensor | None = None  # in the policy's loss, relative to a mean over the minibatch's agent tokens
    truncated_mass: Tensor | None = None  # probability cut off by the sampler's filters; None if not reported
    sampler_log_probs: Tensor | None = None  # with filters; None if these are the policy's own, or nothing was drawn
    importance_weights: Tensor | None = None  # correct for the sampler's distribution
    secret_ids: Tensor | None = None  # what the partner knows; None if no critic reads it
    secret_mask: Tensor | None = None  # True at real tokens
    # Of rows, shape (B,):
    episode: Tensor | None = None  # number of the conversation, whose replies are in order
    group: Tensor | None = None  # number shared by conversations about the same prompt
    last_value: Tensor | None = None  # after the last token; 0 except for truncated episodes with bootstrapping

    def __post_init__(self) -> None:
        if self.token_mask is None:
            self.token_mask = self.response_mask

    @classmethod
    def from_ids(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> Replies:
        """Build replies from the token ids of each prompt and response."""
        tensors = *padded(prompts, left=True), *padded(responses)
        return cls(*(tensor.to(device) for tensor in tensors))

    @classmethod
    def from_rows(cls, rows: Sequence[Row], device: torch.device | str = "cpu") -> Replies:
        """Build replies from rows."""
        replies = cls.from_ids([row.prompt for row in rows], [row.response for row in rows], device)
        replies.response_mask = padded([row.is_agents for row in rows])[0].bool().to(device)
        return replies

    def rows(self) -> list[Row]:
        """The token ids of each row."""
        names = ("prompt_ids", "prompt_mask", "response_ids", "token_mask", "response_mask")
        arrays = (getattr(self, name).cpu().numpy() for name in names)
        return [
            Row(prompt[is_prompt].tolist(), ids[is_token].tolist(), is_agents[is_token].tolist())
            for prompt, is_prompt, ids, is_token, is_agents in zip(*arrays, strict=True)
        ]

    @classmethod
    def from_observations(cls, obs: Mapping[str, Tensor]) -> Replies:
        """Build replies from :attr:`observations`, or from those of a token-level environment.

        The latter have ``context_ids`` (B, T) instead of ``response_ids``; the agent token of a row is the next one.
        """
        prompts = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
        if "response_ids" in obs:
            masks = (obs[name].bool() for name in ("response_mask", "token_mask") if name in obs)
            replies = cls(*prompts, obs["response_ids"].long(), *masks).with_secrets(obs)
            if isinstance(obs, Observations):
                replies.on_host = obs.on_host
            return replies
        response_ids = torch.nn.functional.pad(obs["context_ids"].long(), (0, 1))
        places = torch.arange(response_ids.shape[1], device=response_ids.device)
        lengths = obs["context_mask"].bool().sum(dim=1, keepdim=True)
        replies = cls(*prompts, response_ids, response_mask=places == lengths, token_mask=places <= lengths)
        return replies.with_secrets(obs)

    def with_secrets(self, obs: Mapping[str, Tensor]) -> Replies:
        """The same replies, with the secrets of their observations, if these show any."""
        if "secret_ids" not in obs:
            return self
        return replace(self, secret_ids=obs["secret_ids"].long(), secret_mask=obs["secret_mask"].bool())

    def behind_secrets(self) -> Replies:
        """The same tokens, behind prompts that begin with the secret: what a critic reads that reads it."""
        if self.secret_ids is None or self.secret_mask is None:
            raise ModelError("the critic reads the secrets of conversations, but these replies come without them")
        prompt_ids, prompt, response, token, secret_ids, secret = self.on_host
        assert secret_ids is not None and secret is not None
        ids, is_real = np.concatenate([secret_ids, prompt_ids], axis=1), np.concatenate([secret, prompt], axis=1)
        # Padding between the two moves to the left, so that the mask has no holes.
        order = np.argsort(is_real, axis=1, kind="stable")[:, -max(is_real.sum(axis=1).max(), 1) :]
        ids, is_real = (np.take_along_axis(each, order, axis=1) for each in (ids, is_real))
        prompts = [torch.from_numpy(each).to(self.prompt_ids.device, non_blocking=True) for each in (ids, is_real)]
        found = Replies(prompts[0], prompts[1], self.response_ids, self.response_mask, self.token_mask)
        found.on_host = OnHost(ids, is_real, response, token)
        return found

    @classmethod
    def concatenate(cls, batches: Sequence[Replies]) -> Replies:
        """Concatenate the rows of several batches, which must have the same numbers."""
        of_ids = [name for name in batches[0]._tensors() if name.endswith("_ids")]
        longest = {_kind(name): max(getattr(batch, name).shape[1] for batch in batches) for name in of_ids}

        def widened(name: str, tensor: Tensor) -> Tensor:
            if tensor.dim() == 1:
                return tensor
            missing = longest[_kind(name)] - tensor.shape[1]
            return torch.nn.functional.pad(tensor, (0, missing) if _kind(name) == "response" else (missing, 0))

        parts = [batch._map(widened) for batch in batches]
        return parts[0]._map(lambda name, _: torch.cat([getattr(part, name) for part in parts]))

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def __getitem__(self, rows: Tensor) -> Replies:
        """Select rows, and drop columns that none of them needs."""
        chosen_rows, rows = rows.cpu().numpy(), rows.to(self.prompt_ids.device, non_blocking=True)
        host = self.on_host.mapped(lambda _, array: array[chosen_rows])
        needed = {"prompt": max(host.prompt.sum(axis=1).max(), 1), "response": host.token.sum(axis=1).max()}
        if host.secret is not None:
            needed["secret"] = max(host.secret.sum(axis=1).max(), 1)

        def columns(name: str) -> slice:
            n = needed[_kind(name)]
            return slice(n) if _kind(name) == "response" else slice(-n, None)

        found = self._map(lambda name, tensor: tensor[rows] if tensor.dim() == 1 else tensor[rows, columns(name)])
        found.on_host = host.mapped(lambda name, array: array[:, columns(name)])
        return found

    def to(self, device: torch.device | str) -> Replies:
        """Copy to another device, all tensors of a type and shape at once."""
        device, known = torch.device(device), self._tensors()
        if self.prompt_ids.device.type == device.type:
            return self._map(lambda _, tensor: tensor.to(device))
        alike: dict[Any, list[str]] = defaultdict(list)
        for name, tensor in known.items():
            alike[tensor.dtype, tensor.shape].append(name)
        is_read = device.type == "cpu"
        for names in alike.values():  # from main memory, nothing waits for the copy
            together = torch.stack([known[name] for name in names]).to(device, non_blocking=not is_read)
            known.update(zip(names, together, strict=True))
        moved = Replies(**known)
        if not is_read:
            moved.on_host = self.on_host
        return moved

    def _tensors(self) -> dict[str, Tensor]:
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in known.items() if tensor is not None}

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> Replies:
        return Replies(**{name: change(name, tensor) for name, tensor in self._tensors().items()})

    @cached_property
    def on_host(self) -> OnHost:
        """Prompts and masks in main memory; reading them from a GPU waits for it."""
        tensors = self.prompt_ids, self.prompt_mask, self.response_mask, self.token_mask
        secret = (tensor for tensor in (self.secret_ids, self.secret_mask) if tensor is not None)
        return OnHost(*(tensor.cpu().numpy() for tensor in (*tensors, *secret)))

    @cached_property
    def _places(self) -> Tensor:
        """Indices of the agent tokens in rows that follow one another. Shape (N,)."""
        places = torch.from_numpy(np.flatnonzero(self.on_host.response))
        return places.to(self.prompt_ids.device, non_blocking=True)

    @property
    def coordinates(self) -> tuple[Tensor, Tensor]:
        """Row and column of each agent token. Shapes (N,), (N,)."""
        n_columns = self.response_mask.shape[1]
        return self._places // n_columns, self._places % n_columns

    @property
    def n_tokens(self) -> int:
        """N, the number of agent tokens of all rows."""
        return len(self._places)

    def flat(self, name: str) -> Tensor:
        """Values of an attribute at the agent tokens. Shape (N,)."""
        numbers: Tensor = getattr(self, name)
        return numbers.flatten()[self._places]

    def scattered(self, flat: Tensor | np.ndarray) -> Tensor:
        """Scatter numbers of the agent tokens to their positions, with 0 elsewhere. Shape (N,) -> (B, T)."""
        flat, shape = torch.as_tensor(flat), self.response_mask.shape
        return flat.new_zeros(shape.numel()).index_copy(0, self._places.to(flat.device), flat).view(shape)

    def per_row(self, numbers: str | Tensor) -> list[np.ndarray]:
        """Split an attribute, or numbers of shape (N,), into the agent tokens of each row: B arrays of shape (n,)."""
        flat = self.flat(numbers) if isinstance(numbers, str) else numbers
        return np.split(flat.cpu().numpy(), self.on_host.response.sum(axis=1).cumsum()[:-1])

    def per_reply(self, numbers: str | Tensor) -> list[np.ndarray]:
        """Split numbers as :meth:`per_row`, but into the agent tokens of each reply, where a row has several."""
        flat = self.flat(numbers) if isinstance(numbers, str) else numbers
        starts = np.flatnonzero(np.diff(self.token_replies().cpu().numpy())) + 1
        return np.split(flat.cpu().numpy(), starts)

    def token_replies(self) -> Tensor:
        """Index of the reply that contains each agent token: one per row, or one per turn of a row. Shape (N,)."""
        differs = self.coordinates[0].diff() != 0
        if self.turn is not None:
            differs |= self.flat("turn").diff() != 0
        return torch.nn.functional.pad(differs.long(), (1, 0)).cumsum(dim=0)

    def row_episodes(self) -> np.ndarray:
        """Episode index of each row, counted from 0 without gaps. Shape (B,)."""
        assert self.episode is not None
        return np.unique(self.episode.cpu().numpy(), return_inverse=True)[1]

    def token_episodes(self) -> np.ndarray:
        """Episode index of each agent token, counted from 0 without gaps. Shape (N,)."""
        return np.repeat(self.row_episodes(), self.on_host.response.sum(axis=1))

    def split(self, micro_batch_size: int | None = None, fixed_cost: float | None = None) -> Iterable[Replies]:
        """Split into parts of at most ``micro_batch_size`` rows, each padded to its longest row.

        ``fixed_cost`` is the cost of another part, in token positions: rows of different lengths are separated if this
        saves more padding. With ``None``, they are not.
        """
        groups = self._groups(fixed_cost, micro_batch_size)
        return [self] if len(groups) == 1 else (self[rows] for rows in groups)

    def _groups(self, fixed_cost: float | None, size: int | None) -> Sequence[Tensor]:
        if fixed_cost is None:
            return torch.arange(len(self)).split(size or len(self))
        lengths = self.on_host.prompt.sum(axis=1) + self.on_host.token.sum(axis=1)
        return [torch.as_tensor(rows) for rows in length_groups(lengths, fixed_cost, size)]

    def computed(self, numbers_of: Callable[[Replies], Tensor], lockstep: bool = False, n_logits: int = 1) -> Tensor:
        """Numbers (B, T) from passes without gradients, on rows of similar length; in lockstep, on all rows at once.

        ``n_logits`` of each agent token are in memory during a pass.
        """
        device = self.prompt_ids.device
        found = torch.zeros(self.response_mask.shape, device=device)
        fixed_cost, size = None, None
        if not lockstep:
            fixed_cost, size = FIXED_COST.get(device.type, 0), rows_per_pass(device, found.shape[1], n_logits)
        for rows in self._groups(fixed_cost, size):
            part, rows = self[rows], rows.to(device, non_blocking=True)
            found[rows, : part.response_mask.shape[1]] = numbers_of(part)
        return found

    @property
    def observations(self) -> Observations:
        """Ids and masks, the input of a policy."""
        masks = ("prompt_mask", "response_mask", "token_mask", "secret_mask")
        known, names = self._tensors(), ("prompt_ids", "response_ids", "secret_ids", *masks)
        found = Observations({name: known[name] for name in names if name in known})
        found.on_host = self.on_host
        return found


def _kind(name: str) -> str:
    """Whose width an attribute has: that of prompts, of secrets or of responses."""
    return first if (first := name.partition("_")[0]) in ("prompt", "secret") else "response"


def _at_agent_tokens(name: str) -> Any:
    return property(lambda samples: samples.replies.flat(name))


@dataclass(frozen=True)
class ReplySamples:
    """A minibatch of replies for ``train()``, with the names of stable-baselines3's ``RolloutBufferSamples``.

    All numbers, at rollout time, refer to the N agent tokens, row by row without padding; each has shape (N,).
    Advantages are not whitened, but 0 if the algorithm will whiten them and they are constant up to rounding.
    """

    replies: Replies

    actions = _at_agent_tokens("response_ids")
    old_values = _at_agent_tokens("values")
    old_log_prob = _at_agent_tokens("log_probs")
    advantages = _at_agent_tokens("advantages")
    returns = _at_agent_tokens("returns")
    loss_weights = _at_agent_tokens("loss_weights")
    ref_log_prob = _at_agent_tokens("ref_log_probs")

    @property
    def observations(self) -> dict[str, Tensor]:
        """``prompt_ids`` (B, P) padded on the left, ``response_ids`` (B, T) padded on the right, and masks of both."""
        return self.replies.observations

    def with_numbers(self, **numbers: Tensor) -> ReplySamples:
        """Copy with other numbers of the agent tokens, by attribute of the replies. Shape (N,) each."""
        scattered = {name: self.replies.scattered(flat) for name, flat in numbers.items()}
        changed = replace(self.replies, **scattered)
        changed.on_host = self.replies.on_host
        return ReplySamples(changed)

    def to(self, device: torch.device | str) -> ReplySamples:
        """Copy to another device."""
        return ReplySamples(self.replies.to(device))

    def split(self, micro_batch_size: int | None = None, fixed_cost: float | None = None) -> Iterator[ReplySamples]:
        """Micro-batches; see :meth:`Replies.split`."""
        return map(ReplySamples, self.replies.split(micro_batch_size, fixed_cost))


def joined_rows(turns: Iterable[Row]) -> list[Row]:
    """Join the turns of a conversation to as few rows as possible.

    A turn joins the row before it if its prompt starts with this row's ids. Otherwise, for example if context was
    dropped, it begins a new row. A row is as long as its last turn, so it exceeds no limit that turns observe.
    """
    rows: list[Row] = []
    for turn in turns:
        ids = rows[-1].ids if rows else []
        if not rows or turn.prompt[: len(ids)] != ids:
            rows.append(turn)
            continue
        row, between = rows[-1], turn.prompt[len(ids) :]
        is_agents = [*row.is_agents, *[False] * len(between), *turn.is_agents]
        rows[-1] = Row(row.prompt, [*row.response, *between, *turn.response], is_agents, row.n_turns + turn.n_turns)
    return rows


def joined_turns(replies: Replies) -> Replies:
    """Join the turns of each conversation to rows, without changing what any token is read after; see `joined_rows`.

    The ids between two replies, such as the partner's answer, are in ``token_mask``, but not in ``response_mask``. The
    numbers of agent tokens keep their order.

    Args:
        replies: Any rows; those of a conversation are consecutive and in order.

    Returns:
        Rows of the same conversations. ``last_value`` is that of a row's last turn.
    """
    assert replies.episode is not None
    rows: list[Row] = []
    for _, turns in itertools.groupby(zip(replies.episode.tolist(), replies.rows(), strict=True), lambda pair: pair[0]):
        rows += joined_rows(turn for _, turn in turns)
    joined = Replies.from_rows(rows, replies.prompt_ids.device)
    last = torch.tensor([row.n_turns for row in rows], device=replies.prompt_ids.device).cumsum(dim=0) - 1
    for name in (each.name for each in fields(replies)):
        numbers = getattr(replies, name)
        if numbers is not None and getattr(joined, name) is None:
            is_of_rows = numbers.dim() == 1 or _kind(name) == "secret"
            setattr(joined, name, numbers[last] if is_of_rows else joined.scattered(replies.flat(name)))
    return joined
