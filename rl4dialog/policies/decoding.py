"""Stepping a language model token by token with a KV cache; what differs between decoder-only and encoder-decoder.

A decoder holds the rows of a batch that are still being written. `generation.generate_replies` drives it: the logits of
the next token, then which rows go on.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from rl4dialog.functional.masks import distinct_rows, left_aligned, position_ids_from_mask, trim_left_padding


class Decoder(ABC):
    """One batch of replies under way.

    Attributes:
        context: What the sampler's filters may look at (repetition, n-grams). Shape (n, L).
    """

    context: Tensor

    @abstractmethod
    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        """Logits of the next token.

        Args:
            last_ids: The tokens that were chosen last, shape (n,); ``None`` at the beginning.

        Returns:
            Shape (n, V), float32.
        """

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""


class CausalDecoder(Decoder):
    """A decoder-only model, which reads the prompts in its first step, each different one once."""

    def __init__(self, model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        self._model = model
        self.context, self._mask = trim_left_padding(prompt_ids, prompt_mask.bool())
        self._positions = position_ids_from_mask(self._mask)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._cache = DynamicCache(config=model.config)

    def next_logits(self, last_ids: Tensor | None) -> Tensor:
        if last_ids is None:
            first, repeats = distinct_rows(self.context, self._mask)
            logits = self._step(self.context[first], self._mask[first], self._positions[first])
            self._cache.batch_select_indices(repeats)
            return logits[repeats]
        step_ids = last_ids.unsqueeze(1)
        self.context = torch.cat([self.context, step_ids], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(step_ids, dtype=torch.bool)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        return self._step(step_ids, self._mask, self._positions)

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask.long(),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def keep(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self.context, self._mask, self._positions = self.context[rows], self._mask[rows], self._positions[rows]


class Seq2SeqDecoder(Decoder):
    """An encoder-decoder model; each different prompt is encoded once."""

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
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._prompt_mask.long(),
            decoder_input_ids=self.context[:, -1:],
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def keep(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self.context, self._encoded, self._prompt_mask = (
            self.context[rows],
            self._encoded[rows],
            self._prompt_mask[rows],
        )
