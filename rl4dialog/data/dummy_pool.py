"""A single repeated prompt, for rewards that need no data, such as counting or generating a token."""

from __future__ import annotations

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split


class DummyPool(TextGenPool):
    """One repeated prompt, for toy tasks whose reward needs no reference."""

    @classmethod
    def prepare(cls, split: str, prompt: str, n_samples: Count = 100) -> DummyPool:
        """Create the pool, which is the same for every split.

        Args:
            split: ``train``, ``val`` or ``test``.
            prompt: Prompt of every sample.
            n_samples: Number of samples.

        Returns:
            Samples with one empty reference each.

        Raises:
            DataError: If the split is unknown.
        """
        check_split(split)
        return cls([Sample(f"{split}_{index}", prompt, [""], {}) for index in range(n_samples)])
