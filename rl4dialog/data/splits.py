"""Assigns data to splits: files and datasets of the hub by their names, or by sampling; and prepared datasets."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from rl4dialog.core.arguments import NonNegativeInt, parsed
from rl4dialog.core.cache import find_cached, replace_cached
from rl4dialog.core.downloads import cache_only_without_network
from rl4dialog.core.errors import DataError
from rl4dialog.data.pool import SPLITS, check_split, hub_split
from rl4dialog.data.rows import (
    FilePath,
    Row,
    expand_path,
    origin,
    parse_json,
    read_rows,
    report_unread,
    stream_lines,
    table_suffix,
)

_warn_once = functools.cache(logging.getLogger(__name__).warning)  # and not for each split

# Names of each split in files and hub datasets.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
FILES_HINT = "Set a file for each split: path: {train: FILE, val: FILE, test: FILE}"
DRAW_HINT = ", or sample the missing splits from train, for example with held_out_share: 0.1"

HeldOutShare = Annotated[float, Field(gt=0, lt=0.5)]
IndexFiles = Annotated[dict[str, str], Field(min_length=1)]
"""By split, a JSON file with a list of the numbers of its rows, from 0."""
_RowNumbers = Annotated[list[NonNegativeInt], Field(min_length=1)]
T = TypeVar("T")
CsvFormat = tuple[str | None, str | None]
SplitPath = FilePath | Mapping[str, FilePath]
# Functions that read the rows of each split of a source.
Readers = Mapping[str, Callable[[], Iterable[Row]]]


def places_of(path: SplitPath) -> list[Path]:
    """The files and folders of a path."""
    return [expand_path(each) for each in (path.values() if isinstance(path, Mapping) else [path])]


def shuffled(n_rows: int, seed: str) -> list[int]:
    """Return the numbers from 0 to ``n_rows - 1`` in a random order that is the same on every machine."""
    rng = random.Random(seed)
    # Sorted by random() instead of shuffle(): Python guarantees only random()'s sequence across versions.
    return sorted(range(n_rows), key=lambda _: rng.random())


def share_of(n: int, share: float) -> int:
    """Number of items in a share of n, rounded down; 0.29 of 100 is 29, although 100 * 0.29 is 28.999999999999996."""
    return int(round(n * share, 6))


def drawn_rows(n_rows: int, split: str, held_out: Sequence[str], share: float, seed: str) -> list[int]:
    """Row numbers, ascending, of one split of a table without splits.

    Each held-out split has a share of the rows, at least one if there are enough for all; ``train`` has the others.
    """
    order = shuffled(n_rows, seed)
    size = round(n_rows * share)
    if n_rows > len(held_out):
        size = max(size, 1)
    start = (len(held_out) if split == "train" else held_out.index(split)) * size
    return sorted(order[start:] if split == "train" else order[start : start + size])


def drawn_groups(
    groups: Sequence[Hashable | None], held_out: Sequence[str], share: float, seed: str
) -> dict[str, list[int]]:
    """Row numbers, ascending, of each split of a table whose rows of one group stay together.

    Where all groups have one row, these are the rows of :func:`drawn_rows`. A group for which no held-out split has
    room is of ``train``, unless a split would be empty. So is a group such as "Hello" of more than a quarter of a
    held-out split, where it would decide alone which model is best, if half of the other rows fill these splits. Fewer
    groups than splits are not kept together. Rows whose group is ``None`` are those that will be left out.
    """
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    unused = members.pop(None, [])
    parts, splits, n_rows = [*members.values()], (*held_out, "train"), len(groups) - len(unused)
    size = max(1, round(n_rows * share))
    if len(parts) < len(splits) or len(parts) == n_rows:
        return {split: drawn_rows(len(groups), split, held_out, share, seed) for split in splits}
    found: dict[str, list[list[int]]] = {split: [] for split in splits}
    room = dict.fromkeys(held_out, size)
    n_rare = sum(len(part) for part in parts if len(part) <= size / 4)
    limit = size / 4 if n_rare >= 2 * size * len(held_out) else n_rows
    # Sorting is stable, so that frequent groups come last, and all others in random order.
    for number in sorted(shuffled(len(parts), seed), key=lambda number: len(parts[number]) > limit):
        part = parts[number]
        split = next((split for split in held_out if len(part) <= room[split]), "train")
        found[split].append(part)
        if split in room:
            room[split] -= len(part)
    for split in splits:
        if not found[split]:
            giver = found["train"] if len(found["train"]) > 1 else max(found.values(), key=len)
            found[split].append(giver.pop(giver.index(min(giver, key=len))))
    found["train"].append(unused)
    return {split: sorted(chain.from_iterable(found[split])) for split in splits}


_WORD, _NUMBER = re.compile(r"\w+|[-+*/=<>^](?=\s*\d)"), re.compile(r"\d+")


def folded(text: str) -> str:
    """A text without case, whitespace and punctuation, in which copies differ."""
    return " ".join(_WORD.findall(text.casefold())) or text.strip()


class Said(NamedTuple):
    """What a row has in common with others: what must stay together, its text, and the prompts of its samples."""

    group: str
    text: str
    prompts: Sequence[str]


@dataclass
class Copies:
    """Keeps copies in one split when splits are drawn.

    Once :func:`split_reader` has drawn them, ``outside`` has the prompts that a held-out split shares with others all
    the same, as those of dialogues that begin alike: its samples leave them out.
    """

    read: Callable[[Row], Said]
    whole: Callable[[Iterable[Row]], Iterable[Row]] = iter  # makes rows of parts, such as of single utterances
    outside: set[int] = field(default_factory=set)  # hashes of folded prompts
    report: str = ""  # how many rows are copies, if there are any

    def drawn(
        self, split: str, rows: Iterable[Row], held_out: Sequence[str], share: float, seed: str, source: str
    ) -> tuple[int, list[int]]:
        """The number of rows, and those of a split."""
        groups, texts, prompts, shapes = list[int | None](), list[int](), list[list[int]](), set[int]()
        for row in rows:
            try:
                said = self.read(row)
            except DataError:  # which comes again when the row is used
                said = Said("", "", [])
            text = folded(said.text)
            group = text if said.group is said.text else folded(said.group)
            groups.append(hash(group) if group else None)
            prompts.append([hash(text if each is said.text else folded(each)) for each in said.prompts])
            if text:
                texts.append(hash(text))
                shapes.add(hash(_NUMBER.sub("0", text)))
        found = drawn_groups(groups, held_out, share, seed)
        is_kept = len({*groups} - {None}) > len(held_out)
        before = SPLITS[: SPLITS.index(split)] if is_kept else ()
        self.outside = {each for other in before for row in found.get(other, ()) for each in prompts[row]}
        n_different, n_all = len({*texts}), len(texts)
        if n_different < n_all:
            kept = "in the same split" if is_kept else "in all splits, because there are too few others"
            n_alike = n_different - len(shapes)
            alike = f", and {n_alike:,} more differ only in numbers" if n_alike else ""
            self.report = (
                f"{n_all - n_different:,} of {n_all:,} rows repeat another prompt or dialogue, but for case, space and "
                f"punctuation{alike}; copies are {kept}"
            )
            counts = {name: len({groups[row] for row in found[name]} - {None}) for name in SPLITS if name in found}
            sizes = ", ".join(f"{name} {len(found[name]):,} ({n:,} different)" for name, n in counts.items())
            _warn_once(f"{source}: {self.report}. Rows: {sizes}")
        return len(groups), found[split]

    def kept(self, samples: Sequence[tuple[T, str]], notes: Counter[str]) -> list[T]:
        """Samples, given with what their prompts say, without those whose prompt another split has, too."""
        others = [sample for sample, text in samples if not self.outside or hash(folded(text)) not in self.outside]
        if (n := len(samples) - len(others)) < len(samples):
            notes["samples with a prompt of another split, left out"] += n
            return others
        notes["samples with a prompt of another split, which are all; scores measure what is remembered"] += n
        return [sample for sample, _ in samples]


def drawn_conversations(
    conversations: Iterable[str | int], split: str, share: float, split_seed: int, source: str
) -> set[str | int]:
    """Draw the conversations of a split, so that all judgements of a conversation are in the same split."""
    ids = list(dict.fromkeys(conversations))
    rows = drawn_rows(len(ids), split, ("val", "test"), share, f"held_out/{split_seed}")
    if not rows:
        raise DataError(
            f"{source}: of {len(ids)} judged conversations, held_out_share {share:g} leaves none for split {split!r}; "
            f"at least 3 are needed, one for each split"
        )
    return {ids[row] for row in rows}


def split_reader(
    split: str,
    readers: Readers,
    source: str,
    held_out_share: float | None = None,
    split_seed: int = 0,
    hint: str = FILES_HINT + DRAW_HINT,
    index_file: Mapping[str, FilePath] | None = None,
    copies: Copies | None = None,
) -> Callable[[], Iterable[Row]]:
    """What reads the rows of a split, without holding them, from a source in which splits can be missing.

    With a share, a missing ``val`` or ``test`` is sampled from ``train``, and removed there; otherwise it is an error.
    With index files, every split is rows of ``train``. Rows that are sampled are counted now, and read again later.
    With `copies`, equal rows are in the same split.
    """
    check_split(split)
    if copies is not None:
        parts, whole = readers, copies.whole
        readers = {name: functools.partial(lambda read: whole(read()), read) for name, read in parts.items()}
    missing = [name for name in ("val", "test") if name not in readers]
    if index_file is not None:
        rows = listed_rows(split, index_file, readers, held_out_share)
    elif split in readers and (split != "train" or held_out_share is None or not missing):
        return lambda: report_unread(readers[split](), split)
    elif held_out_share is None or "train" not in readers:
        raise DataError(f"{source} has no split {split!r} (it has: {', '.join(readers) or 'none'}). {hint}")
    read = readers["train"]
    drawing = (missing, held_out_share or 0.0, f"held_out/{split_seed}")
    if index_file is None and copies is not None:
        n_rows, rows = copies.drawn(split, read(), *drawing, source)
    else:
        n_rows = sum(1 for _ in read())
        rows = drawn_rows(n_rows, split, *drawing) if index_file is None else rows
    chosen = bytearray(n_rows)
    for row in rows:
        if row >= n_rows or chosen[row]:
            raise DataError(f"index_file: row {row} stands there twice, or is not one of the {n_rows} rows, from 0")
        chosen[row] = True
    return lambda: report_unread(_chosen_rows(read(), chosen, source), split)


def listed_rows(
    split: str, index_file: Mapping[str, FilePath], readers: Readers, held_out_share: float | None
) -> list[int]:
    """Read the numbers of the rows of a split of a source, which must have no other division."""
    if held_out_share is not None or [*readers] != ["train"]:
        raise DataError("index_file divides one file: remove held_out_share, and the other files of path")
    if split not in index_file:
        raise DataError(f"index_file has no file for split {split!r}; name one for each of {', '.join(SPLITS)}")
    place = expand_path(index_file[split])
    return parsed(_RowNumbers, parse_json("\n".join(stream_lines(place)), str(place)), str(place))


def _chosen_rows(rows: Iterable[Row], chosen: Sequence[int], source: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number == len(chosen):
            raise row.error(f"{source} had {number} rows when its splits were sampled; do not append to it meanwhile")
        if chosen[number]:
            yield row


def file_readers(
    path: SplitPath, suffixes: Sequence[str] = TABLE_SUFFIXES, csv: CsvFormat = (None, None), with_shards: bool = False
) -> Readers:
    """Readers for the splits of table files.

    The path is a mapping from split to file; a folder; or one file, which is used as ``train``. In a folder, a split is
    the file with its name (``val.jsonl``; ``validation``, ``valid`` and ``dev`` are names of ``val``), or else all
    files with the name as a part (``my_val_0.jsonl``, ``my_val_1.jsonl``), in order. With shards, a split can also be a
    folder whose files are its parts: one in a mapping, or one without files named after splits, which is ``train``.
    """
    kinds = " or ".join(suffixes)
    if isinstance(path, Mapping):
        if not path or not path.keys() <= set(SPLITS):
            raise DataError(f"path must contain a file for each of {', '.join(SPLITS)}, not {dict(path)!r}")
        places = {split: expand_path(file) for split, file in path.items()}
        if len({*places.values()}) < len(places):
            same = ", ".join(map(str, places.values()))
            _warn_once("path: several splits are the same file, so their samples are: %s", same)
        files = {
            split: _tables(place, suffixes) if with_shards and place.is_dir() else [place]
            for split, place in places.items()
        }
        if empty := [places[split] for split, paths in files.items() if not paths]:
            raise DataError(f"{empty[0]} contains no {kinds} file")
    elif (place := expand_path(path)).is_dir():
        files, tables = split_files(place, suffixes), _tables(place, suffixes)
        if files:
            used = {*chain.from_iterable(files.values())}
            if others := ", ".join(path.name for path in tables if path not in used):
                _warn_once("%s: not read, because other files are named after splits: %s", place, others)
        elif with_shards and tables:
            files = {"train": _of_one_format(tables, place, "train")}
        else:
            names = ", ".join(chain.from_iterable(SPLIT_NAMES.values()))
            raise DataError(f"{place} contains no {kinds} file named after a split: tried names with {names}")
    else:
        files = {"train": [place]}
    for file in chain.from_iterable(files.values()):
        if table_suffix(file) not in suffixes:
            first = next(stream_lines(file), "") if file.suffix == ".txt" else ""
            raise DataError(f"{file} is not a {kinds} file{origin([first])}")
    return {split: functools.partial(_read_files, paths, csv) for split, paths in files.items()}


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

    Without a split, a mapping of all splits. Of CSV files, only the columns of `numbers` can be numbers; all others are
    texts, as they are written (``007``). By default, ``load_dataset`` decides.
    """
    shown = f"{dataset_id!r} ({f'configuration: {name}, ' if name else ''}split: {split or 'all'})"
    with _explained(shown, offline_hint):
        import datasets

        load = functools.partial(datasets.load_dataset, dataset_id, split=split)
        options = {key: value for key, value in (("name", name), ("revision", revision)) if value is not None}
        try:
            found = load(**options)
            first = next(iter(found.values())) if isinstance(found, dict) else found
            if numbers is None or first.info.builder_name != "csv":
                return found
            text = datasets.Value("string")
            kinds = {column: kind if column in numbers else text for column, kind in first.features.items()}
            return load(features=datasets.Features(kinds), **options)
        except RuntimeError as error:
            if "script" not in str(error):
                raise
            # In this copy, each configuration is a folder.
            return load(revision=_PARQUET_REVISION, **({} if name is None else {"data_dir": name}))


def load_saved_dataset(folder: Path, numbers: Collection[str] | None = None) -> Any:
    """Load a folder from ``save_to_disk``, or with data files: a mapping of splits, or a dataset without splits."""
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
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
    return (Row(values, f"{source}, row {index}") for index, values in enumerate(dataset))


def dataset_readers(dataset: Any, source: str) -> Readers:
    """Return readers for the splits of a loaded dataset; a dataset without splits is ``train``."""
    dataset = dataset if isinstance(dataset, dict) else {"train": dataset}
    return {
        split: functools.partial(dataset_rows, dataset[name], f"{source}, split {name}")
        for split, names in SPLIT_NAMES.items()
        for name in [name for name in names if name in dataset][:1]
    }


def hub_rows(split: str, dataset_id: str, files: str, name: str | None = None) -> Iterator[Row]:
    """The rows of one split of a hub dataset; without a network, these files can be used instead."""
    dataset = load_hub_dataset(dataset_id, offline_hint(files), hub_split(split), name)
    return dataset_rows(dataset, f"hub dataset {dataset_id!r}, split {hub_split(split)}")


def table_rows(
    split: str, path: SplitPath | None, dataset_id: str, files_hint: str, name: str | None = None
) -> Iterable[Row]:
    """The rows of one split, from table files or, without a path, from the hub."""
    if path is not None:
        return split_reader(split, file_readers(path), str(path), hint=FILES_HINT)()
    return hub_rows(split, dataset_id, files_hint, name)


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


_KIND = "data"


def find_prepared(name: str) -> Path | None:
    """The folder of a prepared dataset; ``None`` if it was not prepared or is damaged."""
    return find_cached(_KIND, {"dataset": name})


def prepared_folder(name: str) -> Path:
    folder = find_prepared(name)
    if folder is None:
        raise DataError(f"the dataset {name} is not in the cache; run this first: rl4dialog prepare {name}")
    return folder


def put_prepared(name: str, build: Callable[[Path], None]) -> Path:
    """Put a dataset into the cache; if `build`, which writes and checks its files, raises, an earlier one is kept."""
    return replace_cached(_KIND, {"dataset": name}, build)
