"""Token-by-token decoding with a KV cache, for decoder-only and encoder-decoder models.

A decoder holds the unfinished rows of a batch. `generation.sample_steps` drives it: it requests the logits of the next
token, then selects the rows to keep.
"""

from __future__ import annotations

import inspect
import logging
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from rl4dialog.functional.masks import distinct_rows, left_aligned, position_ids_from_mask, trim_left_padding
from rl4dialog.policies.architectures import CACHED, SKIPS_PAD_TOKENS, UNCACHED
from rl4dialog.policies.lm_head import TrunkOutput, head_is_plain, lm_logits
from rl4dialog.policies.prompt_cache import PromptCache

_logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference between log-probabilities, in nats, that is attributed to kernels."""


class Decoder(ABC):
    """A batch of unfinished replies.

    Attributes:
        context: Token ids for the sampler's filters (repetition, n-grams). Shape (n, L).
    """

    context: Tensor

    @abstractmethod
    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        """Logits of the next token.

        Args:
            last_ids: The previously chosen tokens, shape (n,); ``None`` in the first step.

        Returns:
            Shape (n, V), float32.
        """

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""


class CausalDecoder(Decoder):
    """Decoder for decoder-only models. The first step reads each distinct prompt once.

    Args:
        model: The model.
        prompt_ids: Prompts, padded on the left. Shape (n, P).
        prompt_mask: True at real tokens. Shape (n, P).
        prompt_cache: The last prompts of the same conversations, which are not read again.
    """

    def __init__(
        self, model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor, prompt_cache: PromptCache | None = None
    ) -> None:
        self._model, self._prompt_cache = model, prompt_cache
        self.context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())
        self._positions = position_ids_from_mask(self._mask)
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        # Mamba's cache holds a state instead of keys and values.
        self._is_state = "cache_params" in parameters
        self._cache = DynamicCache(config=model.config)
        # An index selects the last position into a compact tensor. A slice is a strided view, for which torch's matrix
        # product on a CPU copies the head's weights once per row.
        self._last = torch.full((1,), -1, device=self.context.device)

    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is None:
            first, repeats = distinct_rows(self.context, self._mask)
            logits, self._mask = self._read_prompts(self.context[first], self._mask[first], self._positions[first])
            self._cache.reorder_cache(repeats)  # type: ignore[arg-type]
            self._mask = self._mask[repeats]
            return logits[repeats]
        step_ids = last_ids.unsqueeze(1)
        self.context = torch.cat([self.context, step_ids], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(step_ids, dtype=torch.bool)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        return self._step(step_ids, self._mask, self._positions)

    def _read_prompts(self, ids: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the first tokens, and the mask of the columns in the cache."""
        if self._prompt_cache is None:
            return self._step(ids, mask, positions), mask
        prompts = [row[real] for row, real in zip(ids.cpu().numpy(), mask.cpu().numpy(), strict=True)]
        columns, n_new = self._prompt_cache.load(prompts, self._cache)
        columns = columns.to(ids.device)
        logits = self._step(ids[:, -n_new:], columns, positions[:, -n_new:])
        self._prompt_cache.store(prompts, self._cache, columns)
        return logits, columns

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            # A recurrent state no longer contains the padding.
            attention_mask=None if self._is_state and mask.shape != ids.shape else mask.long(),
            use_cache=True,
            logits_to_keep=self._last,
            **{"cache_params" if self._is_state else "past_key_values": self._cache},
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.context, self._mask, self._positions = self.context[rows], self._mask[rows], self._positions[rows]


class UncachedCausalDecoder(Decoder):
    """Decoder for decoder-only models without a usable cache. It reads the whole row again for every token."""

    def __init__(self, model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor, head_is_plain: bool) -> None:
        self._model, self._head_is_plain = model, head_is_plain
        self.context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())

    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is not None:
            self.context = torch.cat([self.context, last_ids.unsqueeze(1)], dim=1)
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=True)
        ids, mask = left_aligned(self.context, self._mask)
        hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]
        return lm_logits(self._model, last, self._head_is_plain).float()

    def keep(self, rows: Tensor) -> None:
        self.context, self._mask = self.context[rows], self._mask[rows]


class Seq2SeqDecoder(Decoder):
    """Decoder for encoder-decoder models. Each distinct prompt is encoded once."""

    def __init__(self, model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor, start_id: int) -> None:
        self._model = model
        prompt_ids, self._prompt_mask = left_aligned(prompt_ids, prompt_mask.bool())
        first, repeats = distinct_rows(prompt_ids, self._prompt_mask)
        encoder = model.get_encoder()
        encoded = encoder(input_ids=prompt_ids[first], attention_mask=self._prompt_mask[first].long())
        self._encoded = encoded.last_hidden_state[repeats]
        self.context = torch.full((len(prompt_ids), 1), start_id, dtype=torch.long, device=prompt_ids.device)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is not None:
            self.context = torch.cat([self.context, last_ids.unsqueeze(1)], dim=1)
        inputs = {"decoder_input_ids": self.context[:, -1:]}
        if self._model.config.model_type == SKIPS_PAD_TOKENS:
            embed = self._model.get_decoder().get_input_embeddings()
            inputs = {"decoder_inputs_embeds": embed(self.context[:, -1:])}
        output = self._model(
            **inputs,
            encoder_outputs=TrunkOutput(last_hidden_state=self._encoded),  # type: ignore[arg-type]
            attention_mask=self._prompt_mask.long(),
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

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
    expected = decoded_log_probs(UncachedCausalDecoder(model, ids, mask, head_is_plain(model)), ids)
    try:
        difference = float((decoded_log_probs(CausalDecoder(model, ids, mask), ids) - expected).abs().max())
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
