"""Order in which logged conversations are learned."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rl4dialog.core.seeding import derive_seed


class OfflineSampler:
    """Minibatches of whole conversations in random order, each conversation once per epoch.

    Conversations of similar length are not grouped: where length goes with reward, as in games that a good player ends
    early, such minibatches differ from each other so much that Adam learns another mean. Padding is saved by splitting
    a minibatch by length. The state is two integers.

    Args:
        n_tokens: Agent tokens of each conversation. Shape (n,).
        batch_size: Approximate number of agent tokens per minibatch.
        seed: Random seed.
    """

    def __init__(self, n_tokens: np.ndarray, batch_size: int, seed: int) -> None:
        self._n_tokens, self._batch_size, self._seed = n_tokens, batch_size, seed
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

    def first_minibatches(self) -> np.ndarray:
        """Number of the minibatch of the first epoch that each conversation is in. Shape (n,)."""
        first = OfflineSampler(self._n_tokens, self._batch_size, self._seed)
        found = np.empty(len(self._n_tokens), dtype=np.int64)
        for number, (start, end) in enumerate(first._batches):
            found[first._order[start:end]] = number
        return found

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
        self._order = random.permutation(len(self._n_tokens)).astype(np.int32)
        tokens = np.cumsum(self._n_tokens[self._order], dtype=np.int64)
        n_batches = max(1, round(int(tokens[-1]) / self._batch_size))
        wanted = np.arange(1, n_batches) * tokens[-1] / n_batches
        cuts = np.unique([0, *np.searchsorted(tokens, wanted), len(tokens)])
        self._batches = [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
