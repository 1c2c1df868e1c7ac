"""Beam search by transformers' ``generate``, for evaluating single replies.

Rollouts and conversations do not support it: a beam is not a sample from the policy, so it cannot be used for training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from rl4dialog.functional.masks import left_aligned, trim_left_padding
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import decoder_start_id
from rl4dialog.text.end_of_turn import EndOfTurn


@torch.no_grad()
def beam_search(
    model: PreTrainedModel,
    obs: dict[str, Tensor],
    settings: GenerationSettings,
    end_of_turn: EndOfTurn,
    max_new_tokens: int,
    pad_token_id: int,
    only_tokens: Callable[..., Tensor],
) -> Replies:
    """Find the best reply to each prompt by beam search.

    Settings that are not given come from the model's generation config.

    Args:
        model: The language model, in eval mode.
        obs: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P).
        settings: Generation settings with ``num_beams`` above 1.
        end_of_turn: Detection of reply ends.
        max_new_tokens: T, the length limit.
        pad_token_id: Padding after the end of a reply.
        only_tokens: Excludes ids without a token from logits, in place.

    Returns:
        The replies, without log-probabilities.
    """
    prompt_ids, prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    if model.config.is_encoder_decoder:
        ids, mask = left_aligned(prompt_ids, prompt_mask)
        n_before = 1
    else:
        ids, mask = trim_left_padding(prompt_ids, prompt_mask)
        n_before = ids.shape[1]
    config = _generation_config(model, settings, end_of_turn, max_new_tokens, pad_token_id)

    def exclude(module: Any, args: Any, output: Any) -> None:
        only_tokens(output.logits, in_place=True)

    # Before the log-softmax, unlike a processor of logits, so that scores are log-probabilities of the policy.
    hook = model.register_forward_hook(exclude)
    try:
        sequences = model.generate(  # type: ignore[operator]
            inputs=ids,
            attention_mask=mask.long(),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([_EndsReply(end_of_turn, n_before)]),
        )
    finally:
        hook.remove()
    found = sequences[:, n_before:]
    lengths = torch.tensor([_n_tokens(row.tolist(), end_of_turn) for row in found], device=found.device)
    longest = int(lengths.max())
    mask = torch.arange(longest, device=found.device) < lengths[:, None]
    return Replies(prompt_ids, prompt_mask, found[:, :longest].masked_fill(~mask, pad_token_id), mask)


def _generation_config(
    model: PreTrainedModel,
    settings: GenerationSettings,
    end_of_turn: EndOfTurn,
    max_new_tokens: int,
    pad_token_id: int,
) -> GenerationConfig:
    sampling: dict[str, Any] = {}
    if settings.do_sample:
        sampling = {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p", "typical_p")}
    if model.config.is_encoder_decoder:
        sampling["decoder_start_token_id"] = decoder_start_id(model)
    return GenerationConfig(
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        do_sample=settings.do_sample,
        min_new_tokens=settings.min_length,
        max_new_tokens=max_new_tokens,
        repetition_penalty=settings.repetition_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        num_return_sequences=1,  # only the best is evaluated
        eos_token_id=sorted(end_of_turn.single_token_ids) or None,
        pad_token_id=pad_token_id,
        **sampling,
    )


class _EndsReply(StoppingCriteria):
    """Ends a beam at the end of a reply, including turn markers of several tokens.

    Args:
        end_of_turn: Detection of reply ends.
        n_before: Number of tokens before the reply.
    """

    def __init__(self, end_of_turn: EndOfTurn, n_before: int) -> None:
        self._end_of_turn, self._n_before = end_of_turn, n_before

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        replies = input_ids[:, self._n_before :].tolist()
        return torch.tensor([self._end_of_turn.is_end(reply) for reply in replies], device=input_ids.device)


def _n_tokens(reply: list[int], end_of_turn: EndOfTurn) -> int:
    ends = (n for n in range(1, len(reply) + 1) if end_of_turn.is_end(reply[:n]))
    return next(ends, len(reply))
