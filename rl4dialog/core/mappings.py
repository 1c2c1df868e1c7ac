"""Operations on nested mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(block: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists, and empty inner mappings, are values."""
    if not isinstance(block, Mapping) or (prefix and not block):
        return {prefix: block}
    flat: dict[str, Any] = {}
    for key, value in block.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
