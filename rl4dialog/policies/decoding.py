"""Token-by-token decoding with a KV cache, for decoder-only and encoder-decoder models.

A decoder holds the unfinished rows of a batch. `generation.sample_steps` drives it: it requests the logits of the next
token, then selects the rows to keep. Value heads read the same hidden states.
"""

from __future__ import annotations

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from rl4dialog.functional.masks import (
    FIXED_COST,
    distinct_rows,
    left_aligned,
    padded,
    position_ids_from_mask,
    rows_to_share,
    trim_left_padding,
)
from rl4dialog.policies.attention import attending_by_products
from rl4dialog.policies.heads import head_is_plain, lm_logits
from rl4dialog.policies.models import CACHED, CONTINUED, HIDES_PAD_TOKENS, SKIPS_PAD_TOKENS, UNCACHED, decoder_start_id


class EncoderDecoder(nn.Module):
    """Encoder and decoder of a language model, without its head; encodes a prompt once for all replies to it."""

    def __init__(self, model: PreTrainedModel, share_prompts: bool) -> None:
        super().__init__()
        self.share_prompts = share_prompts
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.start_id = decoder_start_id(model)
        self._wants_mask = model.config.model_type == HIDES_PAD_TOKENS
        self._wants_embeddings = model.config.model_type == SKIPS_PAD_TOKENS

    def forward(self, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor) -> Tensor:
        """Last hidden state after the start token and after each of ``ids`` (B, T). Shape (B, 1 + T, H).

        Prompts (B, P) may have padding in any place; replies are padded on the right, where it affects no real token.
        """
        prompt_ids, prompt_mask = left_aligned(prompt_ids, prompt_mask)
        start = torch.full_like(prompt_ids[:, :1], self.start_id)
        encoded = self.encode_distinct(prompt_ids, prompt_mask, self.share_prompts)
        return self.decode(torch.cat([start, ids], dim=1), encoded, prompt_mask)

    def decode(
        self, ids: Tensor, encoded: Tensor, prompt_mask: Tensor, cache: EncoderDecoderCache | None = None
    ) -> Tensor:
        """Last hidden state after each token (B, T, H); with a cache, of the last one only (B, 1, H).

        ``ids`` are the start token and reply tokens; the cache has keys and values of all but the last, which is added.
        """
        new_ids = ids if cache is None else ids[:, -1:]
        inputs = {"input_ids": new_ids}
        if self._wants_embeddings:
            inputs = {"inputs_embeds": self.decoder.get_input_embeddings()(new_ids)}
        return self.decoder(
            **inputs,
            attention_mask=torch.ones_like(ids) if self._wants_mask else None,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompt_mask.long(),
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def encode_distinct(self, ids: Tensor, mask: Tensor, share: bool = True) -> Tensor:
        """Encode prompts, padded on the right; equal ones only once with ``share``. Shape (B, P) -> (B, P, H)."""
        first, repeats = (share and rows_to_share(ids, mask)) or (slice(None), slice(None))
        hidden: Tensor = self.encoder(input_ids=ids[first], attention_mask=mask[first].long()).last_hidden_state
        return hidden[repeats]


class _Growing(DynamicLayer):
    """Keys and values with room for later tokens: without it, all of them are copied for each new token."""

    _room: tuple[Tensor, Tensor] | None = None  # of which keys and values are the first columns

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized or key_states.shape[-2] > 1:  # prompts, which may be kept
            self._room = None
            return super().update(key_states, value_states, *args, **kwargs)
        before: tuple[Tensor, Tensor] = (self.keys, self.values)  # type: ignore[assignment]
        n = before[0].shape[-2]
        if self._room is None or self._room[0].shape[-2] == n:
            room = [each.new_empty(*each.shape[:-2], n + 1 + _ROOM, each.shape[-1]) for each in before]
            for new, old in zip(room, before, strict=True):
                new[..., :n, :] = old
            self._room = room[0], room[1]
        for each, new in zip(self._room, (key_states, value_states), strict=True):
            each[..., n : n + 1, :] = new
        self.keys, self.values = (each[..., : n + 1, :] for each in self._room)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._room = None
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]


_ROOM = 64  # columns


def growing_cache(model: Any) -> DynamicCache:
    """An empty cache of a model, whose plain layers have room for later tokens; for generation without gradients."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_Growing() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class PromptCache:
    """Keys and values of the last batch of prompts, to which conversations add a turn; while weights do not change."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # of the last batch, by prompt
        self._lengths: list[int] = []  # of these prompts, longest first
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._mask = torch.zeros(0, 0, dtype=torch.bool)

    def load(self, prompts: Sequence[np.ndarray], cache: DynamicCache) -> tuple[Tensor, int]:
        """Write keys and values of prompts that these prompts begin with into an empty cache, padded on the left to C.

        Returns the mask (n, C + N) of these C columns and of the N still to be read, the last ones of prompts padded on
        the left; and N.
        """
        device = self._mask.device
        rows, n_known = torch.tensor([self._find(prompt) for prompt in prompts], device=device).unbind(dim=1)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        n_new, longest = int((lengths - n_known).max()), int(lengths.max())
        if 2 * n_new > longest:  # reading everything is not much more, and needs no copy of the cache
            return _at_end(lengths, longest), longest
        # Without the columns that are padding in these rows.
        n_columns = int(n_known.max())
        columns = self._mask[rows].int().argsort(dim=1, stable=True)[:, self._mask.shape[1] - n_columns :]
        for i, layer in enumerate(self._layers):
            keys, values = (each[rows[:, None], :, columns].transpose(1, 2) for each in layer)
            cache.update(keys, values, i)
        return torch.cat([_at_end(n_known, n_columns), _at_end(lengths - n_known, n_new)], dim=1), n_new

    def far_behind(self, prompts: Sequence[np.ndarray], fixed_cost: float) -> tuple[list[int], int]:
        """Rows of prompts with many more new tokens than the others, and how many tokens these have at most.

        To read such rows first, up to their last tokens, costs fewer positions than to read all rows at their length.
        """
        lengths = np.array([len(prompt) for prompt in prompts])
        n_new = lengths - [self._find(prompt)[1] for prompt in prompts]
        order = np.argsort(-n_new, kind="stable")
        n, sizes, most = len(prompts), np.arange(len(prompts)), n_new[order]
        costs = np.where(2 * most > lengths.max(), n * lengths.max(), sizes * (most[0] - most) + n * most)
        costs[1:] += fixed_cost
        size = int(costs.argmin())
        return sorted(order[:size].tolist()), int(most[size])

    def store(self, prompts: Sequence[np.ndarray], cache: DynamicCache, mask: Tensor) -> None:
        """Keep these prompts, which the model has read, as columns ``mask`` (n, C). Later tokens go to copies."""
        self._rows = {prompt.tobytes(): row for row, prompt in enumerate(prompts)}
        self._lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
        self._layers, self._mask = _keys_and_values(cache), mask

    def add(self, prompts: Sequence[np.ndarray], cache: DynamicCache, mask: Tensor) -> None:
        """Keep these prompts, too, as :meth:`store`."""
        if not self._layers:
            return self.store(prompts, cache, mask)
        self._rows |= {prompt.tobytes(): len(self._mask) + row for row, prompt in enumerate(prompts)}
        self._lengths = sorted({*self._lengths, *(len(prompt) for prompt in prompts)}, reverse=True)
        behind = mask.shape[1] - self._mask.shape[1]
        before, after = max(behind, 0), max(-behind, 0)  # columns of padding, so that both have equally many

        def joined(old: Tensor, new: Tensor, *inner: int) -> Tensor:
            return torch.cat([pad(old, (*inner, before, 0)), pad(new, (*inner, after, 0))])

        pairs = zip(self._layers, _keys_and_values(cache), strict=True)
        self._layers = [(joined(k, new_k, 0, 0), joined(v, new_v, 0, 0)) for (k, v), (new_k, new_v) in pairs]
        self._mask = joined(self._mask, mask)

    def _find(self, prompt: np.ndarray) -> tuple[int, int]:
        """Row of the longest known beginning of a prompt, and its length; at least one token is left to read."""
        for length in self._lengths:
            if length < len(prompt) and (row := self._rows.get(prompt[:length].tobytes())) is not None:
                return row, length
        return 0, 0


def _keys_and_values(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, of shape (n, heads, C, size)."""
    return [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[misc, union-attr]


def most_gaps(prompt_length: int) -> int:
    """Columns that prompts in a :class:`PromptCache` take beyond their length: where others have more new tokens."""
    return prompt_length // 2  # as more than half of the longest is not new


def can_continue_prompts(model: PreTrainedModel) -> bool:
    """Whether a model can read a prompt whose beginning is in its cache. It cannot if its attention has a window."""
    layers = DynamicCache(config=model.config).layers
    return model.config.model_type in CONTINUED and all(type(layer) is DynamicLayer for layer in layers)


def _at_end(lengths: Tensor, n_columns: int) -> Tensor:
    """Mask of rows of these lengths, padded on the left. Shape (n,) -> (n, n_columns)."""
    return torch.arange(n_columns, device=lengths.device) >= n_columns - lengths[:, None]


_logger = logging.getLogger(__name__)

Obs = dict[str, Tensor]  # observations with `prompt_ids` (n, P), padded on the left, and `prompt_mask` (n, P)
Head = Callable[[Tensor], Tensor]  # logits of hidden states. Shape (n, H) -> (n, V)

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference between log-probabilities, in nats, that is attributed to kernels."""


def tolerance(model: PreTrainedModel) -> float:
    """:data:`TOLERANCE` of a model, under autocast if that is on."""
    return TOLERANCE[torch.bfloat16 if torch.is_autocast_enabled(model.device.type) else model.dtype]


class Decoder(ABC):
    """A batch of unfinished replies."""

    def __init__(self, head: Head | None, context: Tensor) -> None:
        self._head = head  # logits of hidden states; not needed for `next_hidden` alone
        self.context = context  # token ids for the sampler's filters (repetition, n-grams). Shape (n, L)

    def next_hidden(self, last_ids: Tensor | None) -> Tensor:
        """Last hidden states (n, H), which predict the next token, after the chosen ``last_ids`` (n,), if any."""
        if last_ids is None:
            return self._first_hidden()
        self.context = torch.cat([self.context, last_ids.unsqueeze(1)], dim=1)
        return self._hidden_after(last_ids.unsqueeze(1))

    @abstractmethod
    def _first_hidden(self) -> Tensor: ...

    @abstractmethod
    def _hidden_after(self, ids: Tensor) -> Tensor:
        """Last hidden states after one more token of each row, which the context has. Shape (n, 1) -> (n, H)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token, float32. Shape (n, H) -> (n, V)."""
        assert self._head is not None
        return self._head(hidden).float()

    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        """Logits of the next token, float32. Arguments as for :meth:`next_hidden`. Shape (n, V)."""
        return self.logits(self.next_hidden(last_ids))

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""


class CausalDecoder(Decoder):
    """Decoder for decoder-only models, after prompts padded on the left (n, P); reads each distinct one once."""

    def __init__(
        self,
        trunk: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        head: Head | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        context, self.mask = trim_left_padding(prompt_ids, prompt_mask.bool())
        super().__init__(head, context)
        self._trunk = trunk
        self.prompt_cache = prompt_cache  # its prompts, the last ones of the same conversations, are not read again
        self.positions = position_ids_from_mask(self.mask)  # they end with those of the last tokens
        parameters = inspect.signature(trunk.forward).parameters
        self._takes_positions = "position_ids" in parameters
        # Mamba's cache holds a state instead of keys and values.
        self._is_state = "cache_params" in parameters
        self.cache = growing_cache(trunk)  # of C columns, whose real tokens are in the mask (n, C)

    def _first_hidden(self) -> Tensor:
        first, repeats = distinct_rows(self.context, self.mask)
        hidden, self.mask = self._read_prompts(self.context[first], self.mask[first], self.positions[first])
        self.cache.reorder_cache(repeats)  # type: ignore[arg-type]
        self.mask = self.mask[repeats]
        return hidden[repeats]

    def _hidden_after(self, ids: Tensor) -> Tensor:
        self.mask = pad(self.mask, (0, 1), value=True)
        self.positions = self.positions[:, -1:] + 1
        with attending_by_products(ids.device):
            return self._step(ids, self.mask, self.positions, self.cache)

    def _read_prompts(self, ids: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states after the prompts, and the mask of the columns in the cache."""
        if self.prompt_cache is None:
            return self._step(ids, mask, positions, self.cache), mask
        prompts = [row[real] for row, real in zip(ids.cpu().numpy(), mask.cpu().numpy(), strict=True)]
        rows, n_last = self.prompt_cache.far_behind(prompts, FIXED_COST.get(ids.device.type, 0))
        if rows:  # such as those of new conversations
            begun, cache = [prompts[row][:-n_last] for row in rows], growing_cache(self._trunk)
            first_ids, first_mask = (each.to(ids.device) for each in padded(begun, left=True))
            columns = self._read_new(begun, first_ids, position_ids_from_mask(first_mask), cache)[1]
            self.prompt_cache.add(begun, cache, columns)
        hidden, columns = self._read_new(prompts, ids, positions, self.cache)
        self.prompt_cache.store(prompts, self.cache, columns)
        return hidden, columns

    def _read_new(
        self, prompts: Sequence[np.ndarray], ids: Tensor, positions: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """Read into an empty cache what is new in prompts; returns the states after them, and the cache's columns."""
        assert self.prompt_cache is not None
        columns, n_new = self.prompt_cache.load(prompts, cache)
        columns = columns.to(ids.device)
        return self._step(ids[:, -n_new:], columns, positions[:, -n_new:], cache), columns

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        output = self._trunk(
            input_ids=ids,
            # A recurrent state no longer contains the padding.
            attention_mask=None if self._is_state and mask.shape != ids.shape else mask.long(),
            use_cache=True,
            **{"cache_params" if self._is_state else "past_key_values": cache},
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        # Contiguous: for a strided view, torch's matrix product on a CPU copies the head's weights once per row.
        return output.last_hidden_state[:, -1].contiguous()

    def keep(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.context, self.mask, self.positions = self.context[rows], self.mask[rows], self.positions[rows]


class UncachedCausalDecoder(Decoder):
    """Decoder for decoder-only models without a usable cache. It reads the whole row again for every token."""

    def __init__(self, trunk: Any, prompt_ids: Tensor, prompt_mask: Tensor, head: Head | None = None) -> None:
        context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())
        super().__init__(head, context)
        self._trunk = trunk

    def _first_hidden(self) -> Tensor:
        ids, mask = left_aligned(self.context, self._mask)
        hidden: Tensor = self._trunk(input_ids=ids, use_cache=False).last_hidden_state
        return hidden[torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]

    def _hidden_after(self, ids: Tensor) -> Tensor:
        self._mask = pad(self._mask, (0, 1), value=True)
        return self._first_hidden()

    def keep(self, rows: Tensor) -> None:
        self.context, self._mask = self.context[rows], self._mask[rows]


class Seq2SeqDecoder(Decoder):
    """Decoder for encoder-decoder models, after prompts (n, P). Each distinct prompt is encoded once."""

    def __init__(
        self, trunk: EncoderDecoder, prompt_ids: Tensor, prompt_mask: Tensor, head: Head | None = None
    ) -> None:
        super().__init__(head, torch.full_like(prompt_ids[:, :1], trunk.start_id, dtype=torch.long))
        self._trunk = trunk
        prompt_ids, self._prompt_mask = left_aligned(prompt_ids, prompt_mask.bool())
        self._encoded = trunk.encode_distinct(prompt_ids, self._prompt_mask)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def _first_hidden(self) -> Tensor:
        hidden = self._trunk.decode(self.context, self._encoded, self._prompt_mask, self._cache)
        return hidden[:, -1].contiguous()

    def _hidden_after(self, ids: Tensor) -> Tensor:
        return self._first_hidden()

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.context, self._encoded = self.context[rows], self._encoded[rows]
        self._prompt_mask = self._prompt_mask[rows]


def cache_holds(model: PreTrainedModel) -> bool:
    """Whether a decoder-only model generates the same with a cache, padding included. Tested ones are not checked."""
    if model.config.model_type in CACHED | UNCACHED:
        return model.config.model_type in CACHED
    trunk, head = model.base_model, partial(lm_logits, model, is_plain=head_is_plain(model))

    def decode(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return ids, decoded_log_probs(CausalDecoder(trunk, ids, mask, head), ids)

    instead = "cache cannot be used, so prompt and reply are processed again for every generated token"
    return decodes_the_same(model, trunk, head, decode, 4, instead)


@torch.no_grad()
def decodes_the_same(
    model: PreTrainedModel,
    trunk: Any,
    head: Head,
    decode: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    n_prompt: int,
    instead: str,
) -> bool:
    """Whether log-probabilities of tokens are those without a cache; if not, a warning says what is done ``instead``.

    ``decode`` gets B prompts of ``n_prompt`` tokens, some padded, with their mask; it returns replies (B, T) and the
    log-probabilities of their tokens (B, T), or of all tokens (B, T, V).
    """
    ids = torch.arange(2 * n_prompt, device=model.device).view(2, n_prompt) % 8 + 2
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, : n_prompt // 2] = False
    try:
        replies, found = decode(ids, mask)
        expected = decoded_log_probs(UncachedCausalDecoder(trunk, ids, mask, head), replies)
        if found.ndim == 2:
            expected = expected.gather(-1, replies.unsqueeze(-1)).squeeze(-1)
        difference = float((found - expected).abs().max())
        reason = f"its log-probabilities differ by {difference:.2g} nats"
    except Exception as error:  # any error of model code, or of a capture
        difference, reason = math.inf, str(error) or type(error).__name__
    if difference <= tolerance(model):
        return True
    _logger.warning("%s: %s; its %s", type(model).__name__, reason, instead)
    return False


def keeps_states(model: PreTrainedModel) -> bool:
    """Whether a decoder-only model's cache holds states that are overwritten in place, which breaks gradients."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


def decoded_log_probs(decoder: Decoder, replies: Tensor) -> Tensor:
    """Log-probabilities of all tokens at each step, for given replies. Shape (B, T) -> (B, T, V)."""
    steps = [decoder.next_logits(None), *(decoder.next_logits(ids) for ids in replies[:, :-1].T)]
    return torch.stack(steps, dim=1).log_softmax(dim=-1)
