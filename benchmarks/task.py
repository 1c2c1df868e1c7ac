"""What the environments of a workload need: when a reply ends, and rewards (no torch, for the workers' sake)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl4dialog.text.end_of_turn import EndOfTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TableEndOfTurn(EndOfTurn):
    """Ends a reply at the length that its first token chooses from a table."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int]) -> None:
        super().__init__(tokenizer, ())
        self.lengths = tuple(lengths)

    def is_end(self, ids: Sequence[int]) -> bool:
        return len(ids) > 0 and len(ids) >= self.lengths[int(ids[0]) % len(self.lengths)]


def share_of_letters(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    """A reward that costs next to nothing."""
    return sum(c.isalpha() for c in gen_text) / max(1, len(gen_text))


class FailingReward:
    """The share of letters in a reply; for some replies, always the same ones, a failure."""

    def __init__(self, share: float, failure: str = "nan") -> None:
        self._share, self._failure = share, failure

    def __call__(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> Any:
        if zlib.crc32((prompt_text + gen_text).encode()) < self._share * 2**32:
            if self._failure == "raise":
                raise ConnectionError("the reward's server does not answer")
            return {"nan": float("nan"), "inf": float("inf"), "none": None}[self._failure]
        return share_of_letters(prompt_text, gen_text, ref_texts, meta_info)
