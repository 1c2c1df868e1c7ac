"""Parallel corpora: one file per language, aligned by line, in the formats of WMT and IWSLT."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.core.errors import DataError
from rl4dialog.data.splits import SPLIT_NAMES, name_parts
from rl4dialog.data.text_files import FilePath, expand_path, read_lines

# Two files per split: source and target.
PairPath = FilePath | Mapping[str, Sequence[FilePath]]

_MARKUP_SUFFIXES = (".sgm", ".xml")
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL)


def find_parallel_files(
    split: str, path: PairPath, languages: tuple[str, str], more_names: Sequence[str] = ()
) -> list[tuple[Path, Path]]:
    """Find the files of a split, as pairs of source and target.

    In a folder, names must end with the language (``train.en``; a further ``.sgm``, ``.xml`` or ``.gz`` is ignored) and
    have the split as a part, possibly with a year (``dev2010``), or one of ``more_names``. If names have ``src`` or
    ``ref`` as a part, only those of this direction are used (``newstest2016-ende-src.en.sgm``).

    Args:
        split: ``train``, ``val`` or ``test``.
        path: Folder, or a mapping from split to its two files.
        languages: Codes of source and target.
        more_names: Additional name parts that identify this split.
    """
    if isinstance(path, Mapping):
        files = path.get(split)
        if not isinstance(files, list | tuple) or len(files) != 2:
            raise DataError(f"path must contain two files for split {split!r}, [source, target], not {files!r}")
        return [(expand_path(files[0]), expand_path(files[1]))]
    folder = expand_path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; pass a folder, or path: {{train: [SOURCE, TARGET], ...}}")
    own_names = {"train": ("train",), "val": SPLIT_NAMES["val"], "test": ("test", "tst")}[split]
    is_name = re.compile(rf"(?:{'|'.join(own_names)})\d*")
    sides = []
    for language, role in zip(languages, ("src", "ref"), strict=True):
        side = []
        for file in sorted(folder.iterdir()):
            parts = name_parts(file.name)
            while f".{parts[-1]}" in (*_MARKUP_SUFFIXES, ".gz"):
                parts.pop()
            is_of_split = any(is_name.fullmatch(part) or part in more_names for part in parts)
            is_of_direction = not {"src", "ref"} & set(parts) or {role, "".join(languages)} <= set(parts)
            if file.is_file() and parts[-1] == language and is_of_split and is_of_direction:
                side.append(file)
        sides.append(side)
    if not sides[0] or len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{folder} must contain a file of split {split!r} for each language, but has "
            + " and ".join(
                f"for {language!r}: {', '.join(file.name for file in side) or 'none'}"
                for language, side in zip(languages, sides, strict=True)
            )
            + f". Names must have {' or '.join((*own_names, *more_names))} as a part and end with the language, such "
            f"as {own_names[0]}.{languages[0]}; or set path: {{{split}: [SOURCE, TARGET], ...}}"
        )
    return list(zip(*sides, strict=True))


def read_parallel_files(files: Sequence[tuple[Path, Path]]) -> list[tuple[str, str]]:
    """Read the sentence pairs of files."""
    pairs: list[tuple[str, str]] = []
    for source, target in files:
        sentences = _read_sentences(source), _read_sentences(target)
        if len(sentences[0]) != len(sentences[1]):
            raise DataError(
                f"{source} and {target} must have the same number of sentences, not {len(sentences[0])} and "
                f"{len(sentences[1])}"
            )
        pairs += zip(*sentences, strict=True)
    return pairs


def _read_sentences(file: Path) -> list[str]:
    """Read a file's sentences: its lines, its ``<seg>`` elements, or lines without tags in IWSLT's train files."""
    lines = read_lines(file)
    if set(_MARKUP_SUFFIXES) & set(file.suffixes):
        return [" ".join(html.unescape(text).split()) for text in _SEGMENT.findall("\n".join(lines))]
    if "tags" in name_parts(file.name):
        lines = [line for line in lines if not line.lstrip().startswith("<")]
    return [line.strip() for line in lines]
