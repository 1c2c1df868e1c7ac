"""A reward that fails now and then (no torch, for the workers' sake)."""

from __future__ import annotations

import zlib
from typing import Any

FAILURES: dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "none": None}


class FailingReward:
    """The share of letters in a reply; for some replies, always the same ones, a failure."""

    def __init__(self, share: float, failure: str = "nan") -> None:
        self._share, self._failure = share, failure

    def __call__(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> Any:
        if zlib.crc32((prompt_text + gen_text).encode()) < self._share * 2**32:
            if self._failure == "raise":
                raise ConnectionError("the reward's server does not answer")
            return FAILURES[self._failure]
        return sum(c.isalpha() for c in gen_text) / max(1, len(gen_text))
