"""Loading a dataset from the Hugging Face hub, with an error that says how to go on without a network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.hub import cache_only_without_network
from rl4dialog.data.pool import hub_split
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import SPLIT_NAMES, Readers, SplitPath, file_readers, read_split

# The hub keeps a script-free copy of old datasets under this revision; datasets >= 4 refuses to run scripts.
_PARQUET_REVISION = "refs/convert/parquet"


def load_hub_dataset(
    dataset_id: str, offline_hint: str, split: str | None = None, name: str | None = None, revision: str | None = None
) -> Any:
    """Load a dataset with ``datasets.load_dataset``; from its cache when the hub cannot be reached.

    Args:
        dataset_id: Its id on the hub, or a folder with data files.
        offline_hint: What to do without a network; ends the error message.
        split: Name of one split, as the hub calls it; ``None`` for a mapping of all splits.
        name: Which of the dataset's configurations, if it has several.
        revision: Branch, tag or commit; by default the newest.

    Returns:
        What ``load_dataset`` returns.

    Raises:
        DataError: If the dataset cannot be loaded for whatever reason.
    """
    shown = f"{dataset_id!r} ({f'configuration: {name}, ' if name else ''}split: {split or 'all'})"
    with _explained(shown, offline_hint):
        import datasets

        options = {key: value for key, value in (("name", name), ("revision", revision)) if value is not None}
        try:
            return datasets.load_dataset(dataset_id, split=split, **options)
        except RuntimeError as error:
            if "script" not in str(error):
                raise
            # In that copy a configuration is a folder.
            options = {} if name is None else {"data_dir": name}
            return datasets.load_dataset(dataset_id, split=split, revision=_PARQUET_REVISION, **options)


def load_saved_dataset(folder: Path) -> Any:
    """Load what ``save_to_disk`` saved, or a folder of data files: a mapping of splits, or a dataset without splits.

    Raises:
        DataError: If it cannot be loaded for whatever reason.
    """
    is_saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    if not is_saved:
        return load_hub_dataset(str(folder), "The folder must hold files that datasets.load_dataset reads.")
    with _explained(repr(str(folder)), "The folder must hold what save_to_disk saved."):
        import datasets

        return datasets.load_from_disk(str(folder))


def hub_file(dataset_id: str, file: str, offline_hint: str) -> Path:
    """Download one file of a dataset's repository, or find it in the cache.

    Raises:
        DataError: If that fails for whatever reason.
    """
    with _explained(f"{dataset_id!r} (file: {file})", offline_hint):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(dataset_id, file, repo_type="dataset"))


def dataset_rows(dataset: Iterable[Any], source: str) -> Iterator[Row]:
    """Rows of a loaded dataset."""
    return (Row(values, f"{source}, row {index}") for index, values in enumerate(dataset))


def dataset_readers(dataset: Any, source: str) -> Readers:
    """How the splits of a loaded dataset are read; all of it is ``train`` where it has no splits."""
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
    """Rows of one split, from table files or from the hub.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: Where the files are (see `file_readers`); ``None`` for the hub.
        dataset_id: Hub dataset.
        files_hint: What ``path`` should be, for the message when the hub cannot be reached.
        name: Which of the hub dataset's configurations.

    Raises:
        DataError: If the data is missing or malformed.
    """
    if path is not None:
        return read_split(split, file_readers(path), str(path))
    dataset = load_hub_dataset(dataset_id, offline_hint(files_hint), hub_split(split), name)
    return dataset_rows(dataset, f"hub dataset {dataset_id!r}, split {hub_split(split)}")


def offline_hint(files: str) -> str:
    """Say which files do in place of the hub."""
    return f"Without a network, give {files} as 'path:'."


@contextlib.contextmanager
def _explained(shown: str, hint: str) -> Iterator[None]:
    """Turn whatever goes wrong with a dataset into a message that names it and the way out."""
    try:
        with cache_only_without_network():
            yield
    except ImportError as error:
        raise DataError(f"dataset {shown} needs a package that is not installed: {error}. {hint}") from error
    # The hub client raises dozens of unrelated types (network, missing repository, cache, parsing).
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"dataset {shown} cannot be loaded: {type(error).__name__}: {reason}. {hint}") from error
