"""Which part of a source is which split: by the names of files and of hub splits, or drawn where it has none."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl4dialog.core.errors import DataError
from rl4dialog.data.pool import SPLITS, check_split
from rl4dialog.data.rows import Row, read_rows, table_suffix
from rl4dialog.data.text_files import FilePath, expand_path

# Names that files and hub datasets give to each split.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
FILES_HINT = "Name a file for each split: path: {train: FILE, val: FILE, test: FILE}"

HeldOutShare = Annotated[float, Field(gt=0, lt=0.5)]
SplitPath = FilePath | Mapping[str, FilePath]
# How the rows of each split that a source has are read.
Readers = Mapping[str, Callable[[], Iterable[Row]]]


def shuffled(n_rows: int, seed: str) -> list[int]:
    """The numbers from 0 to ``n_rows - 1`` in a random order, the same on every machine."""
    rng = random.Random(seed)
    # Sorting by random() and not shuffle(): Python guarantees only random()'s sequence over its versions.
    return sorted(range(n_rows), key=lambda _: rng.random())


def drawn_rows(n_rows: int, split: str, held_out: Sequence[str], share: float, seed: str) -> list[int]:
    """Rows of one split of a table that has no splits.

    Args:
        n_rows: Rows of the table.
        split: ``train`` for what remains, or one of ``held_out``.
        held_out: Splits that are drawn.
        share: Of the table for each of them; at least one row, if there are enough for all.
        seed: Decides the draw.

    Returns:
        Row numbers, ascending.
    """
    order = shuffled(n_rows, seed)
    size = round(n_rows * share)
    if n_rows > len(held_out):
        size = max(size, 1)
    start = (len(held_out) if split == "train" else held_out.index(split)) * size
    return sorted(order[start:] if split == "train" else order[start : start + size])


def read_split(
    split: str,
    readers: Readers,
    source: str,
    held_out_share: float | None = None,
    split_seed: int = 0,
    hint: str = FILES_HINT,
) -> Iterable[Row]:
    """Rows of a split of a source that may lack some.

    Args:
        split: ``train``, ``val`` or ``test``.
        readers: How the splits that the source has are read.
        source: Name of the source, for messages.
        held_out_share: Share of ``train`` that is drawn for each of ``val`` and ``test`` that the source lacks, and
            left out of ``train``. ``None``: a missing split is an error.
        split_seed: Decides the draw.
        hint: What to do about a missing split, for the message.

    Raises:
        DataError: If the split is unknown, or missing and not to be drawn; the message names those that exist.
    """
    check_split(split)
    missing = [name for name in ("val", "test") if name not in readers]
    if split in readers and (split != "train" or held_out_share is None or not missing):
        return readers[split]()
    if held_out_share is None or "train" not in readers:
        raise DataError(f"{source} has no split {split!r} (it has: {', '.join(readers) or 'none'}). {hint}")
    rows = list(readers["train"]())
    return [rows[i] for i in drawn_rows(len(rows), split, missing, held_out_share, f"held_out/{split_seed}")]


def file_readers(path: SplitPath, suffixes: Sequence[str] = TABLE_SUFFIXES, delimiter: str | None = None) -> Readers:
    """How the splits of table files are read.

    Args:
        path: A mapping from split to file; a folder; or one file, which is all ``train``. In a folder, a split is the
            file of its name (``val.jsonl``; ``validation``, ``valid`` and ``dev`` are names of ``val``), or without
            it all files with the name as a part (``my_val_0.jsonl``, ``my_val_1.jsonl``), in order.
        suffixes: Formats that are read.
        delimiter: Between the columns of CSV files.

    Raises:
        DataError: If a file does not exist or is of another format, or a split has files of several formats.
    """
    if isinstance(path, Mapping):
        unknown = [name for name in path if name not in SPLITS]
        if unknown or not path:
            raise DataError(f"path must name a file for each of {', '.join(SPLITS)}, not {dict(path)!r}")
        files = {split: [expand_path(file)] for split, file in path.items()}
    elif (place := expand_path(path)).is_dir():
        files = split_files(place, suffixes)
        if not files:
            raise DataError(
                f"{place} holds no {' or '.join(suffixes)} file named after a split: looked for names with "
                f"{', '.join(name for names in SPLIT_NAMES.values() for name in names)}"
            )
    else:
        files = {"train": [place]}
    for file in (file for paths in files.values() for file in paths):
        if table_suffix(file) not in suffixes:
            raise DataError(f"{file} is no {' or '.join(suffixes)} file")
    return {split: functools.partial(_read_files, paths, delimiter) for split, paths in files.items()}


def split_files(folder: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """Table files of each split in a folder, none in anything else; see `file_readers`."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    tables = [path for path in entries if path.is_file() and table_suffix(path) in suffixes]
    found: dict[str, list[Path]] = {}
    for split, names in SPLIT_NAMES.items():
        exact = [path for path in tables if path.name.split(".")[0] in names]
        files = exact or [path for path in tables if not set(names).isdisjoint(name_parts(path.name))]
        if len({table_suffix(path) for path in files}) > 1:
            raise DataError(
                f"{folder} has files of several formats for split {split!r}: {', '.join(path.name for path in files)}. "
                f"Name the right one: path: {{{split}: FILE, ...}}"
            )
        if files:
            found[split] = files
    return found


def name_parts(name: str) -> list[str]:
    """The parts of a file name between dots, dashes and underscores."""
    return re.split(r"[._-]", name)


def _read_files(paths: Sequence[Path], delimiter: str | None) -> Iterable[Row]:
    return chain.from_iterable(read_rows(path, delimiter) for path in paths)
