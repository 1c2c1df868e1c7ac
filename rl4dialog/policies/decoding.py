"""Token-by-token decoding with a KV cache, for decoder-only and encoder-decoder models.

A decoder holds the unfinished rows of a batch. `generation.sample_steps` drives it: it requests the logits of the next
token, then selects the rows to keep. Value heads read the same hidden states.
"""

from __future__ import annotations

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from rl4dialog.functional.masks import distinct_rows, left_aligned, position_ids_from_mask, trim_left_padding
from rl4dialog.policies.architectures import CACHED, UNCACHED
from rl4dialog.policies.encoder_decoder import EncoderDecoder
from rl4dialog.policies.lm_head import head_is_plain, lm_logits
from rl4dialog.policies.prompt_cache import PromptCache

_logger = logging.getLogger(__name__)

Head = Callable[[Tensor], Tensor]
"""Logits of hidden states. Shape (n, H) -> (n, V)."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference between log-probabilities, in nats, that is attributed to kernels."""


class Decoder(ABC):
    """A batch of unfinished replies.

    Args:
        head: Logits of hidden states; not needed for :meth:`next_hidden` alone.

    Attributes:
        context: Token ids for the sampler's filters (repetition, n-grams). Shape (n, L).
    """

    context: Tensor

    def __init__(self, head: Head | None) -> None:
        self._head = head

    @abstractmethod
    def next_hidden(self, last_ids: Tensor | None) -> Tensor:
        """Last hidden states, from which the next token is predicted.

        Args:
            last_ids: The previously chosen tokens, shape (n,); ``None`` in the first step.

        Returns:
            Shape (n, H).
        """

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
    """Decoder for decoder-only models. The first step reads each distinct prompt once.

    Args:
        trunk: The model without its head.
        prompt_ids: Prompts, padded on the left. Shape (n, P).
        prompt_mask: True at real tokens. Shape (n, P).
        head: As for :class:`Decoder`.
        prompt_cache: The last prompts of the same conversations, which are not read again.
    """

    def __init__(
        self,
        trunk: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        head: Head | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        super().__init__(head)
        self._trunk, self._prompt_cache = trunk, prompt_cache
        self.context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())
        self._positions = position_ids_from_mask(self._mask)
        parameters = inspect.signature(trunk.forward).parameters
        self._takes_positions = "position_ids" in parameters
        # Mamba's cache holds a state instead of keys and values.
        self._is_state = "cache_params" in parameters
        self._cache = DynamicCache(config=trunk.config)

    def next_hidden(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is None:
            first, repeats = distinct_rows(self.context, self._mask)
            hidden, self._mask = self._read_prompts(self.context[first], self._mask[first], self._positions[first])
            self._cache.reorder_cache(repeats)  # type: ignore[arg-type]
            self._mask = self._mask[repeats]
            return hidden[repeats]
        step_ids = last_ids.unsqueeze(1)
        self.context = torch.cat([self.context, step_ids], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(step_ids, dtype=torch.bool)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        return self._step(step_ids, self._mask, self._positions)

    def _read_prompts(self, ids: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states after the prompts, and the mask of the columns in the cache."""
        if self._prompt_cache is None:
            return self._step(ids, mask, positions), mask
        prompts = [row[real] for row, real in zip(ids.cpu().numpy(), mask.cpu().numpy(), strict=True)]
        columns, n_new = self._prompt_cache.load(prompts, self._cache)
        columns = columns.to(ids.device)
        hidden = self._step(ids[:, -n_new:], columns, positions[:, -n_new:])
        self._prompt_cache.store(prompts, self._cache, columns)
        return hidden, columns

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self._trunk(
            input_ids=ids,
            # A recurrent state no longer contains the padding.
            attention_mask=None if self._is_state and mask.shape != ids.shape else mask.long(),
            use_cache=True,
            **{"cache_params" if self._is_state else "past_key_values": self._cache},
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        # Contiguous: for a strided view, torch's matrix product on a CPU copies the head's weights once per row.
        last: Tensor = output.last_hidden_state[:, -1].contiguous()
        return last

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.context, self._mask, self._positions = self.context[rows], self._mask[rows], self._positions[rows]


class UncachedCausalDecoder(Decoder):
    """Decoder for decoder-only models without a usable cache. It reads the whole row again for every token."""

    def __init__(self, trunk: Any, prompt_ids: Tensor, prompt_mask: Tensor, head: Head | None = None) -> None:
        super().__init__(head)
        self._trunk = trunk
        self.context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())

    def next_hidden(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is not None:
            self.context = torch.cat([self.context, last_ids.unsqueeze(1)], dim=1)
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=True)
        ids, mask = left_aligned(self.context, self._mask)
        hidden: Tensor = self._trunk(input_ids=ids, use_cache=False).last_hidden_state
        return hidden[torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]

    def keep(self, rows: Tensor) -> None:
        self.context, self._mask = self.context[rows], self._mask[rows]


class Seq2SeqDecoder(Decoder):
    """Decoder for encoder-decoder models. Each distinct prompt is encoded once.

    Args:
        trunk: The model without its head.
        prompt_ids: Prompts, padded on the left. Shape (n, P).
        prompt_mask: True at real tokens. Shape (n, P).
        head: As for :class:`Decoder`.
    """

    def __init__(
        self, trunk: EncoderDecoder, prompt_ids: Tensor, prompt_mask: Tensor, head: Head | None = None
    ) -> None:
        super().__init__(head)
        self._trunk = trunk
        prompt_ids, self._prompt_mask = left_aligned(prompt_ids, prompt_mask.bool())
        self._encoded = trunk.encode_distinct(prompt_ids, self._prompt_mask)
        self.context = torch.full((len(prompt_ids), 1), trunk.start_id, dtype=torch.long, device=prompt_ids.device)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def next_hidden(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is not None:
            self.context = torch.cat([self.context, last_ids.unsqueeze(1)], dim=1)
        hidden = self._trunk.decode(self.context, self._encoded, self._prompt_mask, self._cache)
        return hidden[:, -1].contiguous()

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.context, self._encoded, self._prompt_mask = (
            self.context[rows],
            self._encoded[rows],
            self._prompt_mask[rows],
        )


@torch.no_grad()
def cache_holds(model: PreTrainedModel) -> bool:
    """Whether a decoder-only model generates the same with and without a cache, including with padded prompts.

    Architectures covered by the tests are not checked again.
    """
    if model.config.model_type in CACHED | UNCACHED:
        return model.config.model_type in CACHED
    ids = torch.arange(2, 10, device=model.device).view(2, 4)
    mask = torch.tensor([[True] * 4, [False, False, True, True]], device=model.device)
    trunk, head = model.base_model, partial(lm_logits, model, is_plain=head_is_plain(model))
    expected = decoded_log_probs(UncachedCausalDecoder(trunk, ids, mask, head), ids)
    try:
        difference = float((decoded_log_probs(CausalDecoder(trunk, ids, mask, head), ids) - expected).abs().max())
    except Exception:  # any error of model code that does not support the cache
        difference = math.inf
    if difference <= TOLERANCE[model.dtype]:
        return True
    _logger.warning(
        "%s: its cache cannot be used, so prompt and reply are processed again for every generated token",
        type(model).__name__,
    )
    return False


def keeps_states(model: PreTrainedModel) -> bool:
    """Whether a decoder-only model's cache holds states that are overwritten in place, which breaks gradients."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


def decoded_log_probs(decoder: Decoder, replies: Tensor) -> Tensor:
    """Log-probabilities of all tokens at each step, for given replies. Shape (B, T) -> (B, T, V)."""
    steps = [decoder.next_logits(None), *(decoder.next_logits(ids) for ids in replies[:, :-1].T)]
    return torch.stack(steps, dim=1).log_softmax(dim=-1)
