"""Order in which logged conversations are learned."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rl4dialog.core.seeding import derive_seed

_BATCHES_PER_BLOCK = 50


class OfflineSampler:
    """Minibatches of whole conversations, each conversation once per epoch.

    An epoch shuffles the conversations. Blocks of about 50 minibatches are then sorted by length, so that a minibatch
    needs little padding, and the minibatches of a block are shuffled again. The state is two integers.

    Args:
        n_tokens: Agent tokens of each conversation. Shape (n,).
        lengths: Length of each conversation in tokens. Shape (n,).
        batch_size: Agent tokens per minibatch, at least; the last one of a block can have fewer.
        seed: Random seed.
    """

    def __init__(self, n_tokens: np.ndarray, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        self._n_tokens, self._lengths, self._batch_size, self._seed = n_tokens, lengths, batch_size, seed
        self._epoch = self._position = 0
        self._begin_epoch()

    @property
    def epoch(self) -> float:
        """Passes over the log so far."""
        return self._epoch + self._position / len(self._batches)

    def next(self) -> np.ndarray:
        """Indices of the next minibatch's conversations. Shape (n,)."""
        if self._position == len(self._batches):
            self._epoch, self._position = self._epoch + 1, 0
            self._begin_epoch()
        start, end = self._batches[self._position]
        self._position += 1
        return self._order[start:end]

    def state_dict(self) -> dict[str, Any]:
        """The state, as JSON values."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._epoch = int(state["epoch"])
        self._begin_epoch()
        self._position = int(state["position"])

    def _begin_epoch(self) -> None:
        random = np.random.default_rng(derive_seed(self._seed, "offline", str(self._epoch)))
        order = random.permutation(len(self._n_tokens)).astype(np.int32)
        tokens = np.cumsum(self._n_tokens[order], dtype=np.int64)
        blocks = (tokens - 1) // (_BATCHES_PER_BLOCK * self._batch_size)
        batches: list[tuple[int, int]] = []
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            block = order[start:end]
            order[start:end] = block[np.argsort(self._lengths[block], kind="stable")]
            of_block = self._cut(order, int(start), int(end))
            batches += [of_block[i] for i in random.permutation(len(of_block))]
        self._order, self._batches = order, batches

    def _cut(self, order: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
        tokens = np.cumsum(self._n_tokens[order[start:end]], dtype=np.int64)
        n_batches = max(1, round(int(tokens[-1]) / self._batch_size))
        wanted = np.arange(1, n_batches) * tokens[-1] / n_batches
        cuts = np.unique([0, *np.searchsorted(tokens, wanted), end - start])
        return [(int(start + a), int(start + b)) for a, b in itertools.pairwise(cuts)]
