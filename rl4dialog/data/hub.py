"""Loads datasets from the Hugging Face Hub, with errors that explain how to continue without a network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.downloads import cache_only_without_network
from rl4dialog.core.errors import DataError
from rl4dialog.data.pool import hub_split
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import SPLIT_NAMES, Readers, SplitPath, file_readers, read_split

# The hub keeps a script-free copy of old datasets under this revision; datasets >= 4 does not run scripts.
_PARQUET_REVISION = "refs/convert/parquet"


def load_hub_dataset(
    dataset_id: str,
    offline_hint: str,
    split: str | None = None,
    name: str | None = None,
    revision: str | None = None,
    numbers: Collection[str] | None = None,
) -> Any:
    """Load a dataset with ``datasets.load_dataset``; from its cache if the hub cannot be reached.

    Args:
        dataset_id: Id on the hub, or a folder with data files.
        offline_hint: Advice for use without a network, at the end of the error message.
        split: Name of a split on the hub; ``None`` for a mapping of all splits.
        name: Configuration of the dataset, if it has several.
        revision: Branch, tag or commit; by default the latest.
        numbers: Columns of CSV files that can be numbers. All others are texts, as they are written (``007``); by
            default ``load_dataset`` decides.

    Returns:
        The result of ``load_dataset``.
    """
    shown = f"{dataset_id!r} ({f'configuration: {name}, ' if name else ''}split: {split or 'all'})"
    with _explained(shown, offline_hint):
        import datasets

        options = {key: value for key, value in (("name", name), ("revision", revision)) if value is not None}
        try:
            found = datasets.load_dataset(dataset_id, split=split, **options)
            first = next(iter(found.values())) if isinstance(found, dict) else found
            if numbers is None or first.info.builder_name != "csv":
                return found
            text = datasets.Value("string")
            kinds = {column: kind if column in numbers else text for column, kind in first.features.items()}
            return datasets.load_dataset(dataset_id, split=split, features=datasets.Features(kinds), **options)
        except RuntimeError as error:
            if "script" not in str(error):
                raise
            # In this copy, each configuration is a folder.
            options = {} if name is None else {"data_dir": name}
            return datasets.load_dataset(dataset_id, split=split, revision=_PARQUET_REVISION, **options)


def load_saved_dataset(folder: Path, numbers: Collection[str] | None = None) -> Any:
    """Load a folder from ``save_to_disk``, or with data files: a mapping of splits, or a dataset without splits.

    Args:
        folder: The folder.
        numbers: As for :func:`load_hub_dataset`.
    """
    is_saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    if not is_saved:
        hint = "The folder must contain files that datasets.load_dataset supports."
        return load_hub_dataset(str(folder), hint, numbers=numbers)
    with _explained(repr(str(folder)), "The folder must be one written by save_to_disk."):
        import datasets

        return datasets.load_from_disk(str(folder))


def hub_file(dataset_id: str, file: str, offline_hint: str) -> Path:
    """Download one file of a dataset's repository, or find it in the cache."""
    with _explained(f"{dataset_id!r} (file: {file})", offline_hint):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(dataset_id, file, repo_type="dataset"))


def dataset_rows(dataset: Iterable[Any], source: str) -> Iterator[Row]:
    """Yield the rows of a loaded dataset."""
    return (Row(values, f"{source}, row {index}") for index, values in enumerate(dataset))


def dataset_readers(dataset: Any, source: str) -> Readers:
    """Return readers for the splits of a loaded dataset; a dataset without splits is ``train``."""
    if not isinstance(dataset, dict):
        dataset = {"train": dataset}
    found = {split: next((name for name in names if name in dataset), None) for split, names in SPLIT_NAMES.items()}
    return {
        split: functools.partial(dataset_rows, dataset[name], f"{source}, split {name}")
        for split, name in found.items()
        if name is not None
    }


def table_rows(
    split: str, path: SplitPath | None, dataset_id: str, files_hint: str, name: str | None = None
) -> Iterable[Row]:
    """Return the rows of one split, from table files or from the hub.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: Location of the files (see `file_readers`); ``None`` for the hub.
        dataset_id: Hub dataset.
        files_hint: Description of valid values of ``path``, for the message if the hub cannot be reached.
        name: Configuration of the hub dataset.
    """
    if path is not None:
        return read_split(split, file_readers(path), str(path))
    dataset = load_hub_dataset(dataset_id, offline_hint(files_hint), hub_split(split), name)
    return dataset_rows(dataset, f"hub dataset {dataset_id!r}, split {hub_split(split)}")


def offline_hint(files: str) -> str:
    """Explain which files can be used instead of the hub."""
    return f"Without a network, set 'path:' to {files}."


@contextlib.contextmanager
def _explained(shown: str, hint: str) -> Iterator[None]:
    """Convert any error of a dataset to a message that names the dataset and a fix."""
    try:
        with cache_only_without_network():
            yield
    except ImportError as error:
        raise DataError(f"dataset {shown} needs a package that is not installed: {error}. {hint}") from error
    # The hub client raises dozens of unrelated types (network, missing repository, cache, parsing).
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"dataset {shown} cannot be loaded: {type(error).__name__}: {reason}. {hint}") from error
