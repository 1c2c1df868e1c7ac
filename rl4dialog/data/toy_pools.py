"""A single repeated prompt, for rewards that need no data, such as counting or generating a token."""

from __future__ import annotations

import random

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split


class DummyPool(TextGenPool):
    """One repeated prompt, for toy tasks whose reward needs no reference.

    Args:
        prompt: Prompt of every sample.
        n_samples: Number of samples.
    """

    repeats_prompts = True

    @classmethod
    def prepare(cls, split: str, prompt: str, n_samples: Count = 100) -> DummyPool:
        """Create the pool, which is the same for every split; its samples have one empty reference each."""
        check_split(split)
        return cls([Sample(f"{split}_{index}", prompt, [""], {}) for index in range(n_samples)])


class RandomNumbers(TextGenPool):
    """One prompt with random numbers as replies.

    Args:
        prompt: Prompt of every sample.
        n_samples: Number of samples.
        n_numbers: Numbers per reference.
        largest: Largest number; numbers are drawn from 0 on.
        seed: Random seed.
    """

    repeats_prompts = True

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
        """Create the pool; each split has different numbers."""
        check_split(split)
        rng = random.Random(f"random_numbers/{seed}/{split}")
        references = (" ".join(str(rng.randint(0, largest)) for _ in range(n_numbers)) for _ in range(n_samples))
        return cls([Sample(f"{split}_{i}", prompt, [reference], {}) for i, reference in enumerate(references)])
