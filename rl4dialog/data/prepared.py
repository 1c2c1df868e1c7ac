"""Public datasets in the cache, where datapools without a ``path`` find them (``rl4dialog prepare``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl4dialog.core.cache import find_cached, replace_cached
from rl4dialog.core.errors import DataError

_KIND = "data"


def find_prepared(name: str) -> Path | None:
    """The folder of a prepared dataset; ``None`` if it was not prepared or is damaged."""
    return find_cached(_KIND, {"dataset": name})


def prepared_folder(name: str) -> Path:
    """The folder of a prepared dataset."""
    folder = find_prepared(name)
    if folder is None:
        raise DataError(f"the dataset {name} is not in the cache; run this first: rl4dialog prepare {name}")
    return folder


def put_prepared(name: str, build: Callable[[Path], None]) -> Path:
    """Put a dataset into the cache, instead of an earlier one.

    Args:
        name: Name of the dataset.
        build: Writes the files into an empty folder, and checks them. If it raises, an earlier dataset is kept.

    Returns:
        The folder in the cache.
    """
    return replace_cached(_KIND, {"dataset": name}, build)
