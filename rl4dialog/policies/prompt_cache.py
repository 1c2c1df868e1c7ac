"""Keys and values of prompts that the next prompts of the same conversations begin with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rl4dialog.policies.architectures import CONTINUED


class PromptCache:
    """Keys and values of the last batch of prompts, valid as long as the model's weights do not change.

    In conversations, a prompt is the last prompt with a turn added to it, so only this turn has to be read. The model
    must be a decoder-only one for which :func:`can_continue_prompts` holds.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # of the last batch, by prompt
        self._lengths: list[int] = []  # of these prompts, longest first
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._mask = torch.zeros(0, 0, dtype=torch.bool)

    def load(self, prompts: Sequence[np.ndarray], cache: DynamicCache) -> tuple[Tensor, int]:
        """Write the keys and values of prompts that these prompts begin with into an empty cache.

        Args:
            prompts: Token ids of n prompts.
            cache: The cache. Beginnings are padded on the left to C columns.

        Returns:
            The mask of the C columns and of those that are still to be read, which are the last ones of the prompts if
            these are padded on the left, shape (n, C + N); and N.
        """
        device = self._mask.device
        rows, n_known = torch.tensor([self._find(prompt) for prompt in prompts], device=device).unbind(dim=1)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        n_new, longest = int((lengths - n_known).max()), int(lengths.max())
        if 2 * n_new > longest:  # reading everything is not much more, and needs no copy of the cache
            return _at_end(lengths, longest), longest
        # Without the columns that are padding in these rows.
        n_columns = int(n_known.max())
        columns = self._mask[rows].int().argsort(dim=1, stable=True)[:, self._mask.shape[1] - n_columns :]
        for i, layer in enumerate(self._layers):
            keys, values = (each[rows[:, None], :, columns].transpose(1, 2) for each in layer)
            cache.update(keys, values, i)
        return torch.cat([_at_end(n_known, n_columns), _at_end(lengths - n_known, n_new)], dim=1), n_new

    def store(self, prompts: Sequence[np.ndarray], cache: DynamicCache, mask: Tensor) -> None:
        """Keep these prompts, which the model has read, instead of the last batch.

        Args:
            prompts: Token ids of n prompts.
            cache: Their keys and values. Later tokens are added to copies of its tensors.
            mask: True at its columns that belong to the prompts. Shape (n, C).
        """
        self._rows = {prompt.tobytes(): row for row, prompt in enumerate(prompts)}
        self._lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
        self._layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[misc, union-attr]
        self._mask = mask

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


def _at_end(lengths: Tensor, n_columns: int) -> Tensor:
    """Mask of rows of these lengths, padded on the left. Shape (n,) -> (n, n_columns)."""
    return torch.arange(n_columns, device=lengths.device) >= n_columns - lengths[:, None]
