"""From hidden states to logits at chosen positions only: with a large vocabulary, the head is most of the work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions


def lm_logits(model: PreTrainedModel, hidden: Tensor, is_plain: bool) -> Tensor:
    """Logits of N last hidden states. Shape (N, H) -> (N, V).

    Args:
        model: A causal or an encoder-decoder language model.
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
    hidden = torch.randn((2, model.config.get_text_config().hidden_size), generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(model.device, model.dtype)
    logits = _logits_through_model(model, hidden)
    return torch.allclose(logits, model.get_output_embeddings()(hidden), rtol=1e-3, atol=1e-4)


class _GivenHidden(nn.Module):
    """Stands in for a part of a model, and returns hidden states that were computed before."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.hidden)  # type: ignore[arg-type]


def _logits_through_model(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The model's own way from hidden states to logits (soft-capping, scaling, ...). Shape (N, H) -> (N, V)."""
    ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
    if model.config.is_encoder_decoder:
        last = model.get_decoder()
        encoded = BaseModelOutput(last_hidden_state=hidden[None, :1])  # type: ignore[arg-type]
        inputs: dict[str, Any] = {"encoder_outputs": encoded, "decoder_input_ids": ids}
    else:
        last, inputs = model.base_model, {"input_ids": ids}
    path = next(name for name, module in model.named_modules() if module is last)
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    setattr(parent, name, _GivenHidden(hidden.unsqueeze(0)))
    try:
        logits: Tensor = model(**inputs, use_cache=False).logits[0]
    finally:
        setattr(parent, name, last)
    return logits
