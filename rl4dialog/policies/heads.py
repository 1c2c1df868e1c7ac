"""Heads on a language model's hidden states, other than the language-model head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from rl4dialog.policies.models import refusal


def lm_logits(model: PreTrainedModel, hidden: Tensor, is_plain: bool) -> Tensor:
    """Logits of N last hidden states. Shape (N, H) -> (N, V). ``is_plain`` is the result of `head_is_plain`."""
    if is_plain:
        return model.get_output_embeddings()(hidden)
    return _logits_through_model(model, hidden)


@torch.no_grad()
def head_is_plain(model: PreTrainedModel) -> bool:
    """Whether the logits are only the output embedding applied to the last hidden state (checked numerically)."""
    was_training = model.training
    model.eval()
    try:
        hidden, logits = _forward(model, torch.arange(2, 5, device=model.device).unsqueeze(0))
        # Small logits reveal a bias, and large ones soft-capping.
        large = 30 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden)
        both = torch.cat([hidden, large])
        own = _logits_through_model(model, both)
    finally:
        model.train(was_training)
    if not torch.allclose(own[: len(hidden)], logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise refusal(model.config, type(model).__name__, "its logits are not a function of the last hidden state")
    return torch.allclose(model.get_output_embeddings()(both), own, rtol=1e-4, atol=1e-5, equal_nan=True)


def hidden_size(model: PreTrainedModel) -> int:
    """Width of the last hidden states, which may differ from that of the layers."""
    weight = model.get_output_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[1]


def _forward(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Last hidden states and the model's logits for them. Shape (1, N) -> (N, H), (N, V)."""
    outputs: list[Any] = []
    hook = model.get_decoder().register_forward_hook(lambda module, args, output: outputs.append(output))
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    try:
        logits: Tensor = model(**inputs, use_cache=False).logits[0]
    finally:
        hook.remove()
    return outputs[-1].last_hidden_state[0], logits


class TrunkOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Hidden states as returned by a trunk. Other fields that a model reads (router logits, ...) are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenHidden(nn.Module):
    """Replaces a part of a model and returns precomputed hidden states."""

    def __init__(self, hidden: Tensor, replaced: nn.Module) -> None:
        super().__init__()
        self.hidden = hidden
        self._replaced = (replaced,)  # in a tuple, so that it is not registered as a submodule

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._replaced[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> TrunkOutput:
        return TrunkOutput(last_hidden_state=self.hidden)  # type: ignore[arg-type]


def _logits_through_model(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits from hidden states by the model's own head (soft-capping, scaling, ...). Shape (N, H) -> (N, V)."""
    ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
    if model.config.is_encoder_decoder:
        encoded = TrunkOutput(last_hidden_state=hidden[None, :1])  # type: ignore[arg-type]
        inputs: dict[str, Any] = {"encoder_outputs": encoded, "decoder_input_ids": ids}
    else:
        inputs = {"input_ids": ids}
    last = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is last)
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    setattr(parent, name, _GivenHidden(hidden.unsqueeze(0), last))
    try:
        logits: Tensor = model(**inputs, use_cache=False).logits[0]
    finally:
        setattr(parent, name, last)
    return logits


class ValueHead(nn.Module):
    """Linear map from hidden states (N, H) to values (N, 1), with a trunk of its own or the policy's."""

    def __init__(self, n_hidden: int, trunk: nn.Module | None) -> None:
        super().__init__()
        self.trunk = trunk
        # Values start at 0, so that the first advantages are plain returns without the noise of an untrained head.
        self.output: Any = nn.Linear(n_hidden, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values, float32. Shape (N, H) -> (N,)."""
        values: Tensor = self.output(hidden.float()).squeeze(-1)
        return values

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that affect only the values. The optimizer state in checkpoints depends on this order."""
        yield from (parameter for name, parameter in self.named_parameters() if not name.startswith("trunk."))
        if self.trunk is not None:
            yield from (p for p in self.trunk.parameters() if p.requires_grad)
