"""Numbers in no order: what a model is warm-started on before it learns, by reward alone, to write them in order."""

from __future__ import annotations

import random

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split


class RandomNumbers(TextGenPool):
    """One prompt, answered by numbers in no order."""

    @classmethod
    def prepare(
        cls,
        split: str,
        prompt: str = "Lets increase numbers",
        n_samples: Count = 2000,
        n_numbers: Count = 10,
        largest: Count = 99,
        seed: int = 0,
    ) -> RandomNumbers:
        """Make the pool; each split has numbers of its own.

        Args:
            split: ``train``, ``val`` or ``test``.
            prompt: Text of every sample.
            n_samples: How many samples.
            n_numbers: Numbers in a reference.
            largest: Numbers are drawn from 0 to this one.
            seed: Another seed gives other numbers.

        Returns:
            Samples with one reference each.

        Raises:
            DataError: If the split is unknown.
        """
        check_split(split)
        rng = random.Random(f"random_numbers/{seed}/{split}")
        references = (" ".join(str(rng.randint(0, largest)) for _ in range(n_numbers)) for _ in range(n_samples))
        return cls([Sample(f"{split}_{i}", prompt, [reference], {}) for i, reference in enumerate(references)])
