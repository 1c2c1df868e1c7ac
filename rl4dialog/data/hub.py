"""Loading a dataset from the Hugging Face hub, with an error that says how to go on without a network."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.hub import cache_only_without_network

# The hub keeps a script-free copy of old datasets under this revision; datasets >= 4 refuses to run scripts.
_PARQUET_REVISION = "refs/convert/parquet"


def load_hub_dataset(dataset_id: str, offline_hint: str, split: str | None = None) -> Any:
    """Load a dataset with ``datasets.load_dataset``; from its cache when the hub cannot be reached.

    Args:
        dataset_id: Its id on the hub.
        offline_hint: What to do without a network; ends the error message.
        split: Name of one split, as the hub calls it; ``None`` for a mapping of all splits.

    Returns:
        What ``load_dataset`` returns.

    Raises:
        DataError: If the dataset cannot be loaded for whatever reason.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"hub dataset {dataset_id!r} needs the package 'datasets', which is not installed. {offline_hint}"
        ) from error
    try:
        with cache_only_without_network():
            try:
                return datasets.load_dataset(dataset_id, split=split)
            except RuntimeError as error:
                if "script" not in str(error):
                    raise
                return datasets.load_dataset(dataset_id, split=split, revision=_PARQUET_REVISION)
    # The hub client raises dozens of unrelated types (network, missing repository, cache, parsing).
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"hub dataset {dataset_id!r} (split: {split or 'all'}) cannot be loaded: {type(error).__name__}: {reason}. "
            f"{offline_hint}"
        ) from error
