"""Attention of single tokens in bfloat16 on a CPU, for which torch's fused kernel takes three times as long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@contextmanager
def attending_by_products(device: torch.device) -> Iterator[None]:
    """Within it, models with ``sdpa`` attend from one token to their cache by matrix products, on a CPU in bfloat16."""
    if device.type != "cpu":
        yield
        return
    ALL_ATTENTION_FUNCTIONS["sdpa"] = _attend
    try:
        yield
    finally:
        with suppress(KeyError):  # another thread has removed it
            del ALL_ATTENTION_FUNCTIONS["sdpa"]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend; arguments as in transformers. ``query``: (B, heads, T, D); ``key``, ``value``: (B, groups, C, D)."""
    n_rows, n_heads, n_tokens, size = query.shape
    is_maskable = attention_mask is None or (attention_mask.dtype == torch.bool and attention_mask.shape[1] == 1)
    is_plain = is_maskable and not any(kwargs.get(name) is not None for name in ("position_bias", "softcap"))
    if n_tokens > 1 or key.dtype != torch.bfloat16 or not is_plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scaling = kwargs.get("scaling")
    # Heads of a group have the same keys: they are the columns of one product, which reads the keys once.
    queries = (query * (size**-0.5 if scaling is None else scaling)).reshape(n_rows, key.shape[1], -1, size)
    scores = (key @ queries.mT).mT.float()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    heads = (scores.softmax(-1).to(value.dtype) @ value).view(n_rows, n_heads, 1, -1)
    return heads.transpose(1, 2).contiguous(), None
