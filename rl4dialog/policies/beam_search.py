"""Beam search by transformers' ``generate``, for evaluating single replies.

Rollouts and conversations do not support it: a beam is not a sample from the policy, so it cannot be used for training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from rl4dialog.functional.masks import left_aligned, padded, trim_left_padding
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import decoder_start_id
from rl4dialog.text.end_of_turn import EndOfTurn

if TYPE_CHECKING:
    from rl4dialog.policies.base import LMActorCriticPolicy


@torch.no_grad()
def beam_search(policy: LMActorCriticPolicy, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
    """The best reply to each prompt by beam search, without log-probabilities. Other settings are the model's."""
    model, ends = policy.language_model, policy.end_of_turn
    is_encoder_decoder = model.config.is_encoder_decoder
    prompt_ids, prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    ids, mask = (left_aligned if is_encoder_decoder else trim_left_padding)(prompt_ids, prompt_mask)
    n_before = 1 if is_encoder_decoder else ids.shape[1]
    names = ["num_beams", "length_penalty", "early_stopping", "do_sample", "repetition_penalty", "no_repeat_ngram_size"]
    names += ["temperature", "top_k", "top_p", "typical_p"] if settings.do_sample else []
    config = GenerationConfig(
        min_new_tokens=settings.min_length,
        max_new_tokens=limit,
        num_return_sequences=1,  # only the best is evaluated
        eos_token_id=sorted(ends.single_token_ids) or None,
        pad_token_id=policy.pad_token_id,
        **({"decoder_start_token_id": decoder_start_id(model)} if is_encoder_decoder else {}),
        **{name: getattr(settings, name) for name in names},
    )

    def exclude(module: Any, args: Any, output: Any) -> None:
        policy.only_tokens(output.logits, in_place=True)

    # Before the log-softmax, unlike a processor of logits, so that scores are log-probabilities of the policy.
    hook = model.register_forward_hook(exclude)
    try:
        sequences = model.generate(  # type: ignore[operator]
            inputs=ids,
            attention_mask=mask.long(),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([_EndsReply(ends, n_before)]),
        )
    finally:
        hook.remove()
    found = [ends.until_end(row) for row in sequences[:, n_before:].tolist()]
    response_ids, response_mask = padded(found, value=policy.pad_token_id)
    return Replies(prompt_ids, prompt_mask, response_ids.to(ids.device), response_mask.to(ids.device))


class _EndsReply(StoppingCriteria):
    """Ends a beam at the end of a reply, including turn markers of several tokens."""

    def __init__(self, end_of_turn: EndOfTurn, n_before: int) -> None:
        self._end_of_turn, self._n_before = end_of_turn, n_before

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        replies = input_ids[:, self._n_before :].tolist()
        return torch.tensor([self._end_of_turn.is_end(reply) for reply in replies], device=input_ids.device)
