"""The samples of a run, by split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.types import Sample, system_text
from rl4dialog.data.pool import TextGenPool


@dataclass
class Data:
    """The samples of a run, how its dialogue format ends a turn, and what returns the world of its task."""

    pools: dict[str, TextGenPool]
    turn_marker: str | None
    world: Callable[[], Any] | None = None

    def samples(self, split: str, limit: int | None = None) -> list[Sample]:
        """Samples of a split, the first ``limit`` of them."""
        return [sample for sample, _ in self.pools[split]][:limit]

    @property
    def persona(self) -> str | None:
        """The text before the first utterance that all prompts of the train split share, such as a system message."""
        found = {system_text(sample.prompt_or_input_text) for sample in self.samples("train")}
        return (found.pop() or None) if len(found) == 1 else None

    def personas(self, key: str) -> list[tuple[str, ...]]:
        """Lists of texts under a key of the meta data, such as ``persona``, in the train split; each once, in order."""
        found = ((sample.meta_data or {}).get(key) for sample in self.samples("train"))
        return list(dict.fromkeys(tuple(texts) for texts in found if isinstance(texts, list | tuple) and texts))
