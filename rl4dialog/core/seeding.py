"""Derives independent seeds from the single seed of a run."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive a 31-bit seed from ``seed`` and its purpose, identical on all machines and Python versions."""
    text = "\0".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
