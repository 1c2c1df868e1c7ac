"""Actor-critic policy over any encoder-decoder language model (``AutoModelForSeq2SeqLM``).

The encoder reads the prompt. The decoder generates the reply after the start token of the model's config.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import Decoder, EncoderDecoder, Head, Obs, PromptCache, Seq2SeqDecoder


class Seq2SeqLMActorCriticPolicy(LMActorCriticPolicy):
    """Encoder-decoder policy, critic and reference.

    Arguments: see :class:`LMActorCriticPolicy`.
    """

    auto_class = AutoModelForSeq2SeqLM

    def _trunk(self, model: PreTrainedModel) -> EncoderDecoder:
        # Created on demand, because an attribute would register the model's parameters a second time.
        return EncoderDecoder(model, self.share_prompts)

    def _decoder(self, trunk: Any, obs: Obs, head: Head | None = None, cache: PromptCache | None = None) -> Decoder:
        # The encoder reads a prompt in both directions, so a longer one has other states than the cache.
        return Seq2SeqDecoder(trunk, obs["prompt_ids"], obs["prompt_mask"], head)

    def _response_hidden(self, trunk: nn.Module, replies: Replies) -> Tensor:
        hidden: Tensor = trunk(replies.prompt_ids, replies.prompt_mask, replies.response_ids[:, :-1])
        return hidden[replies.coordinates]
