"""Encoder-decoder language models without their heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache, PreTrainedModel

from rl4dialog.functional.masks import left_aligned, rows_to_share
from rl4dialog.policies.architectures import HIDES_PAD_TOKENS, SKIPS_PAD_TOKENS
from rl4dialog.policies.models import decoder_start_id


class EncoderDecoder(nn.Module):
    """Encoder and decoder of a language model, without its head.

    Args:
        model: The language model.
        share_prompts: Encode a prompt only once for all replies to it.
    """

    def __init__(self, model: PreTrainedModel, share_prompts: bool) -> None:
        super().__init__()
        self.share_prompts = share_prompts
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.start_id = decoder_start_id(model)
        self._wants_mask = model.config.model_type == HIDES_PAD_TOKENS
        self._wants_embeddings = model.config.model_type == SKIPS_PAD_TOKENS

    def forward(self, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor) -> Tensor:
        """Last hidden state after the start token and after each of ``ids``. Shape (B, 1 + T, H).

        Args:
            prompt_ids: Prompts, with padding in any place. Shape (B, P).
            prompt_mask: True at real tokens. Shape (B, P).
            ids: Reply tokens, padded on the right, where they do not affect real tokens. Shape (B, T).
        """
        prompt_ids, prompt_mask = left_aligned(prompt_ids, prompt_mask)
        start = torch.full_like(prompt_ids[:, :1], self.start_id)
        encoded = self.encode_distinct(prompt_ids, prompt_mask, self.share_prompts)
        return self.decode(torch.cat([start, ids], dim=1), encoded, prompt_mask)

    def decode(
        self, ids: Tensor, encoded: Tensor, prompt_mask: Tensor, cache: EncoderDecoderCache | None = None
    ) -> Tensor:
        """Last hidden state after each token; with a cache, of the last one only.

        Args:
            ids: Start token and reply tokens. Shape (B, T).
            encoded: Encoded prompts. Shape (B, P, H).
            prompt_mask: True at their real tokens. Shape (B, P).
            cache: Keys and values of all tokens but the last one, to which this one is added.

        Returns:
            Shape (B, T, H), or (B, 1, H) with a cache.
        """
        new_ids = ids if cache is None else ids[:, -1:]
        inputs = {"input_ids": new_ids}
        if self._wants_embeddings:
            inputs = {"inputs_embeds": self.decoder.get_input_embeddings()(new_ids)}
        output = self.decoder(
            **inputs,
            attention_mask=torch.ones_like(ids) if self._wants_mask else None,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompt_mask.long(),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def encode_distinct(self, ids: Tensor, mask: Tensor, share: bool = True) -> Tensor:
        """Encode prompts, padded on the right; equal ones only once with ``share``. Shape (B, P) -> (B, P, H)."""
        if share and (shared := rows_to_share(ids, mask)):
            first, repeats = shared
            return self._encode(ids[first], mask[first])[repeats]
        return self._encode(ids, mask)

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return hidden
