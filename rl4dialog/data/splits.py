"""Assigns data to splits: by names of files and hub splits, or by sampling if there are none."""

from __future__ import annotations

import functools
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl4dialog.core.errors import DataError
from rl4dialog.data.pool import SPLITS, check_split
from rl4dialog.data.rows import Row, origin, read_rows, table_suffix
from rl4dialog.data.text_files import UTF_8, FilePath, expand_path, stream_lines

_logger = logging.getLogger(__name__)

# Names of each split in files and hub datasets.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
FILES_HINT = "Set a file for each split: path: {train: FILE, val: FILE, test: FILE}"

HeldOutShare = Annotated[float, Field(gt=0, lt=0.5)]
CsvFormat = tuple[str | None, str]
SplitPath = FilePath | Mapping[str, FilePath]
# Functions that read the rows of each split of a source.
Readers = Mapping[str, Callable[[], Iterable[Row]]]


def shuffled(n_rows: int, seed: str) -> list[int]:
    """Return the numbers from 0 to ``n_rows - 1`` in a random order that is the same on every machine."""
    rng = random.Random(seed)
    # Sorted by random() instead of shuffle(): Python guarantees only random()'s sequence across versions.
    return sorted(range(n_rows), key=lambda _: rng.random())


def share_of(n: int, share: float) -> int:
    """Number of items in a share of n, rounded down; 0.29 of 100 is 29, although 100 * 0.29 is 28.999999999999996."""
    return int(round(n * share, 6))


def drawn_rows(n_rows: int, split: str, held_out: Sequence[str], share: float, seed: str) -> list[int]:
    """Sample the rows of one split from a table without splits.

    Args:
        n_rows: Number of rows of the table.
        split: ``train`` for the remaining rows, or one of ``held_out``.
        held_out: Splits to sample.
        share: Share of the table for each of them; at least one row, if there are enough for all.
        seed: Random seed.

    Returns:
        Row numbers, ascending.
    """
    order = shuffled(n_rows, seed)
    size = round(n_rows * share)
    if n_rows > len(held_out):
        size = max(size, 1)
    start = (len(held_out) if split == "train" else held_out.index(split)) * size
    return sorted(order[start:] if split == "train" else order[start : start + size])


def drawn_conversations(
    conversations: Iterable[str | int], split: str, share: float, split_seed: int, source: str
) -> set[str | int]:
    """Draw the conversations of a split, so that all judgements of a conversation are in the same split.

    Args:
        conversations: Ids of all conversations; repeated ones count once.
        split: ``train``, ``val`` or ``test``.
        share: Share of the conversations in each of ``val`` and ``test``; at least one.
        split_seed: Random seed of the splits.
        source: Where they are from, for messages.
    """
    ids = list(dict.fromkeys(conversations))
    rows = drawn_rows(len(ids), split, ("val", "test"), share, f"held_out/{split_seed}")
    if not rows:
        raise DataError(
            f"{source}: of {len(ids)} judged conversations, held_out_share {share:g} leaves none for split {split!r}; "
            f"at least 3 are needed, one for each split"
        )
    return {ids[row] for row in rows}


def read_split(
    split: str,
    readers: Readers,
    source: str,
    held_out_share: float | None = None,
    split_seed: int = 0,
    hint: str = FILES_HINT,
) -> Iterable[Row]:
    """Return the rows of a split from a source in which splits can be missing.

    Args:
        split: ``train``, ``val`` or ``test``.
        readers: Functions that read the source's splits.
        source: Name of the source, for messages.
        held_out_share: Share of ``train`` that is sampled for each of ``val`` and ``test`` that is missing, and removed
            from ``train``. With ``None``, a missing split is an error.
        split_seed: Random seed of this sampling.
        hint: Advice about a missing split, for the message.
    """
    return split_reader(split, readers, source, held_out_share, split_seed, hint)()


def split_reader(
    split: str,
    readers: Readers,
    source: str,
    held_out_share: float | None = None,
    split_seed: int = 0,
    hint: str = FILES_HINT,
) -> Callable[[], Iterable[Row]]:
    """Return a function that reads the rows of :func:`read_split` anew, without holding them.

    If rows are to be sampled, they are counted now, and read again later.
    """
    check_split(split)
    missing = [name for name in ("val", "test") if name not in readers]
    if split in readers and (split != "train" or held_out_share is None or not missing):
        return readers[split]
    if held_out_share is None or "train" not in readers:
        raise DataError(f"{source} has no split {split!r} (it has: {', '.join(readers) or 'none'}). {hint}")
    read = readers["train"]
    n_rows = sum(1 for _ in read())
    chosen = bytearray(n_rows)
    for row in drawn_rows(n_rows, split, missing, held_out_share, f"held_out/{split_seed}"):
        chosen[row] = True
    return lambda: _chosen_rows(read(), chosen, source)


def _chosen_rows(rows: Iterable[Row], chosen: Sequence[int], source: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number == len(chosen):
            raise row.error(f"{source} had {number} rows when its splits were sampled; do not append to it meanwhile")
        if chosen[number]:
            yield row


def file_readers(
    path: SplitPath, suffixes: Sequence[str] = TABLE_SUFFIXES, csv: CsvFormat = (None, UTF_8), with_shards: bool = False
) -> Readers:
    """Return readers for the splits of table files.

    Args:
        path: A mapping from split to file; a folder; or one file, which is used as ``train``. In a folder, a split is
            the file with its name (``val.jsonl``; ``validation``, ``valid`` and ``dev`` are names of ``val``), or else
            all files with the name as a part (``my_val_0.jsonl``, ``my_val_1.jsonl``), in order.
        suffixes: Supported formats.
        csv: Column delimiter and encoding of CSV files; see `read_rows`.
        with_shards: Whether a split can be a folder whose files are its parts: one in a mapping, or one without files
            named after splits, which is ``train``.
    """
    if isinstance(path, Mapping):
        unknown = [name for name in path if name not in SPLITS]
        if unknown or not path:
            raise DataError(f"path must contain a file for each of {', '.join(SPLITS)}, not {dict(path)!r}")
        places = {split: expand_path(file) for split, file in path.items()}
        _warn_of_same(tuple(places.values()))
        files = {
            split: _tables(place, suffixes) if with_shards and place.is_dir() else [place]
            for split, place in places.items()
        }
        if empty := [str(places[split]) for split, paths in files.items() if not paths]:
            raise DataError(f"{empty[0]} contains no {' or '.join(suffixes)} file")
    elif (place := expand_path(path)).is_dir():
        files = split_files(place, suffixes)
        if files:
            _warn_of_others(place, tuple(_tables(place, suffixes)), tuple(chain.from_iterable(files.values())))
        if not files and with_shards and (tables := _tables(place, suffixes)):
            files = {"train": _of_one_format(tables, place, "train")}
        if not files:
            raise DataError(
                f"{place} contains no {' or '.join(suffixes)} file named after a split: tried names with "
                f"{', '.join(name for names in SPLIT_NAMES.values() for name in names)}"
            )
    else:
        files = {"train": [place]}
    for file in (file for paths in files.values() for file in paths):
        if table_suffix(file) not in suffixes:
            first = next(stream_lines(file), "") if file.suffix == ".txt" else ""
            raise DataError(f"{file} is not a {' or '.join(suffixes)} file{origin([first])}")
    return {split: functools.partial(_read_files, paths, csv) for split, paths in files.items()}


@functools.cache  # once, and not for each split
def _warn_of_others(folder: Path, tables: tuple[Path, ...], used: tuple[Path, ...]) -> None:
    if others := [path.name for path in tables if path not in used]:
        _logger.warning("%s: not read, because other files are named after splits: %s", folder, ", ".join(others))


@functools.lru_cache
def _warn_of_same(files: tuple[Path, ...]) -> None:
    if len({*files}) < len(files):
        _logger.warning("path: several splits are the same file, so their samples are: %s", ", ".join(map(str, files)))


def split_files(folder: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """Return the table files of each split in a folder, none for other paths; see `file_readers`."""
    tables = _tables(folder, suffixes) if folder.is_dir() else []
    found: dict[str, list[Path]] = {}
    for split, names in SPLIT_NAMES.items():
        exact = [path for path in tables if path.name.split(".")[0] in names]
        files = exact or [path for path in tables if not set(names).isdisjoint(name_parts(path.name))]
        if files:
            found[split] = _of_one_format(files, folder, split)
    return found


def _tables(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and table_suffix(path) in suffixes]


def _of_one_format(files: list[Path], folder: Path, split: str) -> list[Path]:
    if len({table_suffix(path) for path in files}) > 1:
        raise DataError(
            f"{folder} has files of several formats for split {split!r}: {', '.join(path.name for path in files)}. "
            f"Select one: path: {{{split}: FILE, ...}}"
        )
    return files


def name_parts(name: str) -> list[str]:
    """Split a file name at dots, dashes and underscores."""
    return re.split(r"[._-]", name)


def _read_files(paths: Sequence[Path], csv: CsvFormat) -> Iterable[Row]:
    return chain.from_iterable(read_rows(path, *csv) for path in paths)
