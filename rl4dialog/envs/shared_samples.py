"""The samples of a run in a form that forked processes share."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import overload

import cloudpickle
import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample


class SharedSamples(Sequence[Sample]):
    """Samples as one block of bytes; each is unpickled on access.

    Forked processes keep sharing such a block. They would soon copy a list, because even reading an object changes its
    reference count.

    Args:
        samples: Samples, or pairs of a sample and its sampling weight.

    Raises:
        DataError: If a sample cannot be pickled.

    Attributes:
        weights: Relative sampling weights, or ``None`` if all are equal. Shape (n,).
    """

    def __init__(self, samples: Sequence[Sample | tuple[Sample, float]]) -> None:
        self.weights = sampling_weights(samples)
        # cloudpickle, so that workers can unpickle classes from user files.
        block = io.BytesIO()
        pickler = cloudpickle.CloudPickler(block, protocol=pickle.HIGHEST_PROTOCOL)
        ends = []
        for pair in samples:
            sample = pair if isinstance(pair, Sample) else pair[0]
            try:
                pickler.dump(sample)
            except Exception as error:
                raise DataError(f"sample {sample.id!r} cannot be pickled: {type(error).__name__}: {error}") from error
            pickler.clear_memo()
            ends.append(block.tell())
        self._block, self._ends = block.getvalue(), np.array(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        start = self._ends[i - 1] if i else 0
        sample: Sample = pickle.loads(memoryview(self._block)[start : self._ends[i]])
        return sample


def sampling_weights(samples: Sequence[Sample | tuple[Sample, float]]) -> np.ndarray | None:
    """Return the sampling weights of samples, or ``None`` if all are equal. Shape (n,)."""
    weights = np.array([1.0 if isinstance(sample, Sample) else float(sample[1]) for sample in samples])
    return None if np.all(weights == weights[:1]) else weights


def sampling_probabilities(weights: np.ndarray, priority_scale: float) -> np.ndarray:
    """Compute the probability of each sample: its weight to the power of ``priority_scale``, normalized.

    Schaul et al. 2016, "Prioritized Experience Replay", as in RL4LMs' sampler.

    Args:
        weights: Positive weights. Shape (n,).
        priority_scale: Exponent, at least 0; 0 samples uniformly, 1 proportionally to the weights.

    Returns:
        Probabilities that sum to 1. Shape (n,).
    """
    # At most 1, so that powers cannot overflow.
    scaled: np.ndarray = (weights / weights.max()) ** priority_scale
    return scaled / scaled.sum()
