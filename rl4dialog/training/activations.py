"""Memory of a pass with gradients, predicted by tracing the model without its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rl4dialog.policies.checkpointing import checkpoint_layers

_FLOAT = 4


@dataclass(frozen=True)
class PassSizes:
    """Sizes of a pass with gradients.

    Attributes:
        n_rows: Number of rows.
        n_prompts: Number of prompts that are read: fewer than rows if these share them.
        prompt: Tokens of a prompt.
        response: Tokens after it.
        n_scored: Tokens of a row whose logits are needed.
        n_trunks: Models that read the rows: policy, and a separate critic.
    """

    n_rows: int
    n_prompts: int
    prompt: int
    response: int
    n_scored: int
    n_trunks: int = 1


def predict_activations(
    architecture: Callable[[], PreTrainedModel], sizes: PassSizes, gradient_checkpointing: bool
) -> int:
    """Predict the bytes that a pass keeps for its backward pass, plus the needs of that pass.

    Args:
        architecture: Builds the model.
        sizes: Sizes of the pass.
        gradient_checkpointing: Whether layers are recomputed.
    """
    # Unlike meta tensors, fake tensors follow the code paths of the device's kernels.
    with FakeTensorMode(), _FakeExperts():
        fake = architecture()
        trunk_bytes, head_bytes = _activations(fake, sizes)
        # The backward pass of a layer also holds gradients of its activations, or recomputed activations.
        layer_bytes = trunk_bytes // fake.config.get_text_config().num_hidden_layers
        if gradient_checkpointing:
            checkpoint_layers(fake)
            trunk_bytes, head_bytes = _activations(fake, sizes)
            layer_bytes *= 2
    return sizes.n_trunks * trunk_bytes + head_bytes + layer_bytes


class _FakeExperts(TorchFunctionMode):
    """Replaces the product with all experts by one with a single expert: same sizes, and supported in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._grouped_mm:
            return args[0] @ args[1][0]
        return func(*args, **(kwargs or {}))


def _activations(model: PreTrainedModel, sizes: PassSizes) -> tuple[int, int]:
    """Bytes that the trunk, and the head with its log-softmax of scored tokens, keep for the backward pass."""

    def zeros(length: int, n_rows: int = sizes.n_rows) -> Tensor:
        return torch.zeros(n_rows, length, dtype=torch.long)

    with _counting_saved(model.parameters()) as trunk_bytes:
        if model.config.is_encoder_decoder:
            encoded = model.get_encoder()(input_ids=zeros(sizes.prompt)).last_hidden_state
            decoder = model.get_decoder()
            hidden = decoder(input_ids=zeros(sizes.response), encoder_hidden_states=encoded, use_cache=False)
        elif 2 * sizes.n_prompts <= sizes.n_rows:  # read each prompt once, like the causal policy
            cache = model.base_model(input_ids=zeros(sizes.prompt, sizes.n_prompts), use_cache=True).past_key_values
            cache.batch_select_indices(zeros(1)[:, 0])
            hidden = model.base_model(input_ids=zeros(sizes.response), past_key_values=cache, use_cache=True)
        else:
            hidden = model.base_model(input_ids=zeros(sizes.prompt + sizes.response), use_cache=False)
        hidden = hidden.last_hidden_state[:, -sizes.n_scored :].reshape(sizes.n_rows * sizes.n_scored, -1)
    with _counting_saved(model.parameters()) as head_bytes:
        logits = model.get_output_embeddings()(hidden).float()
        log_probs = logits.log_softmax(dim=-1)
        (log_probs.gather(-1, zeros(sizes.n_scored).view(-1, 1)).sum() + (log_probs.exp() * log_probs).sum()).sum()
    # The logits themselves, and their gradient.
    return trunk_bytes(), head_bytes() + 2 * _FLOAT * logits.numel()


@contextmanager
def _counting_saved(parameters: Iterable[Tensor]) -> Iterator[Callable[[], int]]:
    """Count the bytes of tensors that operations save for their backward passes, without parameters."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
