"""Loading a dataset from the Hugging Face hub, with an error that says how to go on without a network."""

from __future__ import annotations

import contextlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from rl4dialog.core.errors import DataError

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
        with _cache_only_without_network():
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


@contextlib.contextmanager
def _cache_only_without_network() -> Iterator[None]:
    """Switch the hub client to its offline mode when the hub's name does not resolve.

    The client itself retries for half a minute before it gives up or looks into its cache.
    """
    from datasets import config
    from huggingface_hub import constants

    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if not urllib.request.getproxies() and not _resolves(host):
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
