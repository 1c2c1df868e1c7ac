"""Actor-critic policy over any encoder-decoder language model (``AutoModelForSeq2SeqLM``).

The encoder reads the prompt. The decoder generates the reply after the start token of the model's config.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from rl4dialog.functional.masks import distinct_rows, left_aligned
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.architectures import HIDES_PAD_TOKENS, SKIPS_PAD_TOKENS
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import Seq2SeqDecoder
from rl4dialog.policies.models import decoder_start_id
from rl4dialog.policies.prompt_cache import PromptCache


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
        ids = torch.cat([start, ids], dim=1)
        inputs = {"input_ids": ids}
        if self._wants_embeddings:
            inputs = {"inputs_embeds": self.decoder.get_input_embeddings()(ids)}
        output = self.decoder(
            **inputs,
            attention_mask=torch.ones_like(ids) if self._wants_mask else None,
            encoder_hidden_states=self._encode(prompt_ids, prompt_mask),
            encoder_attention_mask=prompt_mask.long(),
            use_cache=False,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        if self.share_prompts:
            first, repeats = distinct_rows(ids, mask)
            # Gathering rows also takes time, above all in the backward pass.
            if 2 * len(first) <= len(repeats):
                return self._encode_all(ids[first], mask[first])[repeats]
        return self._encode_all(ids, mask)

    def _encode_all(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return hidden


class Seq2SeqLMActorCriticPolicy(LMActorCriticPolicy):
    """Encoder-decoder policy, critic and reference.

    Arguments: see :class:`LMActorCriticPolicy`.
    """

    auto_class = AutoModelForSeq2SeqLM

    def _trunk(self, model: PreTrainedModel) -> nn.Module:
        # Created on demand, because an attribute would register the model's parameters a second time.
        return EncoderDecoder(model, self.share_prompts)

    def _decoder(
        self, model: PreTrainedModel, obs: dict[str, Tensor], prompt_cache: PromptCache | None = None
    ) -> Seq2SeqDecoder:
        del prompt_cache  # the encoder reads a prompt in both directions, so a longer one has other states
        return Seq2SeqDecoder(model, obs["prompt_ids"], obs["prompt_mask"], decoder_start_id(model))

    def _response_hidden(self, trunk: nn.Module, replies: Replies) -> Tensor:
        hidden: Tensor = trunk(replies.prompt_ids, replies.prompt_mask, replies.response_ids[:, :-1])
        return hidden[replies.response_mask]
