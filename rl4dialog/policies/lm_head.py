"""From hidden states to logits at chosen positions only: with a large vocabulary, the head is most of the work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions


def lm_logits(model: PreTrainedModel, hidden: Tensor, is_plain: bool) -> Tensor:
    """Logits of N last hidden states. Shape (N, H) -> (N, V).

    Args:
        model: A causal language model.
        hidden: Shape (N, H).
        is_plain: What :func:`head_is_plain` says of the model.
    """
    if is_plain:
        logits: Tensor = model.get_output_embeddings()(hidden)
        return logits
    return _logits_through_model(model, hidden)


@torch.no_grad()
def head_is_plain(model: PreTrainedModel) -> bool:
    """Whether logits are just the output embedding of the last hidden state (tried out, not guessed by name)."""
    was_training = model.training
    model.eval()
    ids = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    plain = torch.allclose(logits, model.get_output_embeddings()(hidden), rtol=1e-3, atol=1e-4)
    model.train(was_training)
    return plain


class _GivenHidden(nn.Module):
    """Stands in for a trunk and returns hidden states that were computed before."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.hidden)  # type: ignore[arg-type]


def _logits_through_model(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The model's own way from hidden states to logits (soft-capping, scaling, ...). Shape (N, H) -> (N, V)."""
    name = model.base_model_prefix
    trunk = getattr(model, name)
    setattr(model, name, _GivenHidden(hidden.unsqueeze(0)))
    try:
        ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    finally:
        setattr(model, name, trunk)
    return logits
