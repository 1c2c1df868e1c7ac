"""Texts that partners read from the meta data of a sample."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import DataError, shown


def sample_texts(meta_info: dict[str, Any], key: str, partner: str, hint: str, at_least: int = 0) -> list[str]:
    """Return a list of texts in a sample's ``meta_data``.

    Args:
        meta_info: The sample's ``meta_data``.
        key: Key of the texts.
        partner: Id of the partner, for the message.
        hint: Source of such samples, for the message.
        at_least: Required number of texts.
    """
    texts = meta_info.get(key)
    if not isinstance(texts, (list, tuple)) or len(texts) < at_least or not all(isinstance(t, str) for t in texts):
        raise DataError(
            f"partner {partner!r} needs samples with a list of texts in meta_data[{key!r}], not {shown(texts)}; {hint}"
        )
    return list(texts)
