"""Weighted parts of a reward, their sum, and the replies that they score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rl4dialog.core.protocols import BatchedConversationReward, ConversationReward
from rl4dialog.core.types import Dialogue, is_number, reply_dialogue


@dataclass(frozen=True)
class RewardPart:
    """One term of a weighted sum of rewards."""

    name: str  # in the logs
    weight: float | Callable[[int], float]  # factor in the sum, a number or a function of the iteration
    # A `RewardFunction` (called in the env workers), a `BatchedRewardFunction` (called in the main process), or an
    # `AsyncReward` of `scores/parts.py` (awaited in the main process).
    function: Any
    # Minimum and maximum of each payment before weighting: per token, or per reply if it is paid at the end.
    clip: tuple[float, float] | None = None
    in_main_process: bool = False  # whether the function scores whole replies in the main process
    # Whether a reward for whole replies is paid for each reply of a conversation, not only for the last; ``None``
    # leaves this to the run.
    each_turn: bool | None = None

    def weight_at(self, iteration: int) -> float:
        """The weight in an iteration, counted from 1."""
        return self.weight(iteration) if callable(self.weight) else self.weight

    def term(self, value: Any, iteration: int = 1) -> Any:
        """Compute the term of a number or an array in the sum: clipped, then weighted. NaN stays NaN."""
        if self.clip is not None:
            value = np.clip(value, *self.clip)
        return self.weight_at(iteration) * value


def weighted_sum(parts: Iterable[RewardPart], values: Mapping[str, Any], iteration: int = 1) -> Any:
    """Sum the clipped and weighted raw values of parts, by name: numbers, or float64 arrays of any shape."""
    return sum(part.term(values[part.name], iteration) for part in parts)


def names_needing(parts: Iterable[RewardPart], what: Literal["tokens", "references"]) -> str:
    """List the names of the rewards that declare that they need a reply's tokens or references; may be empty."""
    return ", ".join(repr(part.name) for part in parts if getattr(part.function, f"needs_{what}", False))


@dataclass
class FinishedReplies:
    """A batch of replies to score, with one item per reply in all lists."""

    prompt_texts: list[str]
    gen_texts: list[str]  # the replies
    ref_texts: list[list[str]]  # their references
    meta_infos: list[dict[str, Any]] = field(default_factory=list)  # of the samples; empty by default
    sample_ids: Sequence[Any] = ()  # for error messages; by default row numbers
    dones: list[bool] = field(default_factory=list)  # whether the episode ended with the reply; by default all did
    dialogues: list[Dialogue] = field(default_factory=list)  # by default of one reply, after the history in meta data
    # Payments for earlier turns of each conversation, oldest first, by name of the reward that made them at the end.
    earlier: dict[str, list[list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # messages of failed rewards whose replies are masked, in order

    def __post_init__(self) -> None:
        n = len(self.gen_texts)
        self.meta_infos = [info or {} for info in self.meta_infos or [{}] * n]
        self.sample_ids = self.sample_ids or range(n)
        self.dones = self.dones or [True] * n

    def __len__(self) -> int:
        return len(self.gen_texts)

    def dialogue(self, row: int) -> Dialogue:
        """The conversation of a reply."""
        if self.dialogues:
            return self.dialogues[row]
        texts = (self.prompt_texts[row], self.gen_texts[row])
        return reply_dialogue(self.sample_ids[row], *texts, self.meta_infos[row])

    def paid(self, part: RewardPart) -> FinishedReplies:
        """The replies as a reward sees them: each as the last, if it is paid for each and not for conversations."""
        if not part.each_turn or isinstance(part.function, (ConversationReward, BatchedConversationReward)):
            return self
        return replace(self, dones=[True] * len(self))


def clip_bounds(value: Any) -> tuple[float, float]:
    """Parse the bounds of a ``clip``: ``2`` means from -2 to 2, ``[0, 1]`` from 0 to 1."""
    if is_number(value) and value > 0:
        return -float(value), float(value)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]:
        return float(value[0]), float(value[1])
    raise ValueError(f"must be a positive number or [lowest, highest], not {value!r}")
