"""Input checks shared by all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from rl4dialog.core.errors import DataError, shown


def check_lengths(generated_texts: Sized, *others: Sized | None) -> None:
    """Check that there is at least one text, and that all sequences have the same length.

    Raises:
        ValueError: If not.
    """
    if not len(generated_texts):
        raise ValueError("a metric needs at least one text")
    for other in others:
        if other is not None and len(other) != len(generated_texts):
            raise ValueError(f"got {len(generated_texts)} generated texts, but another input has length {len(other)}")


def check_references(reference_texts: Sequence[Sequence[str]]) -> None:
    """Check that every text has at least one reference."""
    for row, references in enumerate(reference_texts):
        if isinstance(references, str) or not len(references):
            raise DataError(
                f"text {row} needs a list of at least one reference, not {references!r}; this metric compares replies "
                f"with references, so every sample of the datapool must have one"
            )


def meta_data_there(info: Mapping[str, Any] | None, key: str) -> str:
    """Describe, for an error message, the value of a meta data key, or the existing keys if it is missing."""
    if info is not None and key in info:
        return shown(info[key])
    return f"only {', '.join(map(str, info))}" if info else "no meta data"
