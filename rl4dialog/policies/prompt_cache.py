"""Keys and values of prompts that the next prompts of the same conversations begin with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rl4dialog.policies.architectures import CONTINUED


class KnownPart(NamedTuple):
    """Beginnings of prompts, already read by the model.

    Attributes:
        cache: Their keys and values.
        mask: True at real tokens, padded on the left. Shape (n, C).
        n_new: Number of columns at the end of the prompts that are still to be read.
        is_new: True at tokens in these columns that are not in the cache. Shape (n, n_new).
    """

    cache: DynamicCache
    mask: Tensor
    n_new: int
    is_new: Tensor


class PromptCache:
    """Keys and values of the last batch of prompts, valid as long as the model's weights do not change.

    In conversations, a prompt is the last prompt with a turn added to it, so only this turn has to be read.

    Args:
        model: A decoder-only model for which :func:`can_continue_prompts` holds.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._config = model.config
        self._rows: dict[bytes, int] = {}  # of the last batch, by prompt
        self._lengths: list[int] = []  # of these prompts, longest first
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._mask = torch.zeros(0, 0, dtype=torch.bool)

    def known_part(self, ids: Tensor, mask: Tensor) -> KnownPart:
        """Find prompts of the last batch that these prompts begin with.

        Args:
            ids: Prompts, padded on the left. Shape (n, P).
            mask: True at real tokens. Shape (n, P).
        """
        found = [self._find(prompt) for prompt in _prompts(ids, mask)]
        rows, n_known = torch.tensor(found, device=ids.device).unbind(dim=1)
        lengths = mask.sum(dim=1)
        n_new = int((lengths - n_known).max())
        cache = DynamicCache(config=self._config)
        if 2 * n_new > ids.shape[1]:  # reading everything is not much more, and needs no copy of the cache
            return KnownPart(cache, mask[:, :0], ids.shape[1], mask)
        # Without the columns that are padding in these rows.
        n_columns = int(n_known.max())
        columns = self._mask[rows].int().argsort(dim=1, stable=True)[:, self._mask.shape[1] - n_columns :]
        for i, layer in enumerate(self._layers):
            keys, values = (each[rows[:, None], :, columns].transpose(1, 2) for each in layer)
            cache.update(keys, values, i)
        before = torch.arange(n_columns, device=ids.device) >= n_columns - n_known[:, None]
        is_new = torch.arange(n_new, device=ids.device) >= n_new - (lengths - n_known)[:, None]
        return KnownPart(cache, before, n_new, is_new)

    def remember(self, ids: Tensor, mask: Tensor, cache: DynamicCache, cache_mask: Tensor) -> None:
        """Keep these prompts, which the model has read, instead of the last batch.

        Args:
            ids: Prompts, padded on the left. Shape (n, P).
            mask: True at real tokens. Shape (n, P).
            cache: Their keys and values. Later tokens are added to copies of its tensors.
            cache_mask: True at its columns that belong to the prompts. Shape (n, C).
        """
        prompts = _prompts(ids, mask)
        self._rows = {prompt.tobytes(): row for row, prompt in enumerate(prompts)}
        self._lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
        self._layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[misc, union-attr]
        self._mask = cache_mask

    def _find(self, prompt: np.ndarray) -> tuple[int, int]:
        """Row of the longest known beginning of a prompt, and its length; at least one token is left to read."""
        for length in self._lengths:
            if length < len(prompt) and (row := self._rows.get(prompt[:length].tobytes())) is not None:
                return row, length
        return 0, 0


def can_continue_prompts(model: PreTrainedModel) -> bool:
    """Whether a model can read a prompt whose beginning is in its cache. It cannot if its attention has a window."""
    layers = DynamicCache(config=model.config).layers
    return model.config.model_type in CONTINUED and all(type(layer) is DynamicLayer for layer in layers)


def _prompts(ids: Tensor, mask: Tensor) -> list[np.ndarray]:
    """Split a batch into prompts without padding."""
    return [row[real] for row, real in zip(ids.cpu().numpy(), mask.cpu().numpy(), strict=True)]
