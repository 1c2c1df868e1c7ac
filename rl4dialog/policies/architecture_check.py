"""Checks whether a model of an untested architecture can be trained, by comparison with the bare model."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.errors import ModelError
from rl4dialog.functional.masks import padded
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import TOLERANCE, EncoderDecoder, Seq2SeqDecoder, decoded_log_probs
from rl4dialog.policies.heads import head_is_plain, lm_logits
from rl4dialog.policies.models import decoder_start_id, is_listed, refusal

_PROMPTS = [[2, 3, 4, 5, 6], [7, 8]]
_REPLIES = [[9, 10, 11], [12, 13, 14]]


@torch.no_grad()
def examine(model: PreTrainedModel, model_name: str) -> None:
    """Compare log-probabilities, padded and step by step, with the bare model's; tested architectures are skipped."""
    if is_listed(model.config):
        return
    was_training = model.training
    model.eval()
    try:
        difference = _first_difference(model)
    except ModelError:
        raise
    except Exception as error:  # any error of model code called in an unsupported way
        first_line = (str(error).splitlines() or [""])[0]
        raise refusal(model.config, model_name, f"{type(error).__name__} in a test call: {first_line}") from error
    finally:
        model.train(was_training)
    if difference is not None:
        raise refusal(model.config, model_name, difference)


def _first_difference(model: PreTrainedModel) -> str | None:
    is_plain = head_is_plain(model)
    expected = torch.stack([_alone(model, *row) for row in zip(_PROMPTS, _REPLIES, strict=True)])
    shorter = torch.stack([_alone(model, p, r[:1]) for p, r in zip(_PROMPTS, _REPLIES, strict=True)])
    if _differ(shorter, expected[:, :1]):
        return "later tokens change the probability of earlier ones"
    prompt_ids, prompt_mask = padded(_PROMPTS, left=True)
    prompt_ids, prompt_mask = prompt_ids.to(model.device), prompt_mask.to(model.device)
    replies = torch.tensor(_REPLIES, device=model.device)
    if model.config.is_encoder_decoder:
        trunk = EncoderDecoder(model, share_prompts=False)
        hidden = trunk(prompt_ids, prompt_mask, replies[:, :-1])
    else:
        mask = torch.cat([prompt_mask, torch.ones_like(replies[:, :-1], dtype=torch.bool)], dim=1)
        whole = CausalLMActorCriticPolicy._hidden(model.base_model, torch.cat([prompt_ids, replies[:, :-1]], 1), mask)
        places = prompt_mask.sum(dim=1, keepdim=True) - 1 + torch.arange(replies.shape[1], device=model.device)
        hidden = whole.gather(1, places.unsqueeze(-1).expand(-1, -1, whole.shape[-1]))
    together = lm_logits(model, hidden.flatten(0, 1), is_plain).unflatten(0, replies.shape).float().log_softmax(-1)
    if _differ(together, expected):
        return "other rows of a batch, or its padding, change log-probabilities"
    if model.config.is_encoder_decoder:
        decoder = Seq2SeqDecoder(trunk, prompt_ids, prompt_mask, partial(lm_logits, model, is_plain=is_plain))
        if _differ(decoded_log_probs(decoder, replies), expected):
            return "log-probabilities with its cache differ from those without"
    return None


def _alone(model: PreTrainedModel, prompt: list[int], reply: list[int]) -> Tensor:
    """Log-probabilities of all tokens at each position of a reply, from the bare model. Shape (T, V)."""
    if model.config.is_encoder_decoder:
        start = decoder_start_id(model)
        inputs = {"input_ids": [prompt], "decoder_input_ids": [[start, *reply[:-1]]]}
    else:
        inputs = {"input_ids": [prompt + reply[:-1]]}
    output = model(**{name: torch.tensor(ids, device=model.device) for name, ids in inputs.items()}, use_cache=False)
    logits: Tensor = output.logits[0, -len(reply) :]
    return logits.float().log_softmax(dim=-1)


def _differ(log_probs: Tensor, expected: Tensor) -> bool:
    return not bool((log_probs - expected).abs().max() <= TOLERANCE[torch.float32])
