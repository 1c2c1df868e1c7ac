"""Independent seeds derived from the one seed of a run."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """A 31-bit seed that depends on ``seed`` and on what it is for, the same on every machine and Python."""
    text = "\0".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
