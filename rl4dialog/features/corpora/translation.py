"""Translation: WMT and IWSLT, from the hub or from parallel files.

Hub datasets have a column ``translation`` with a text per language. Parallel files, one per language and aligned by
line, are plain text, WMT's ``.sgm`` or IWSLT's ``.xml``. Pairs with an empty side are skipped. WMT's news data is free
for research; IWSLT's talks are TED's, CC BY-NC-ND 4.0. Sources: the findings of the Conferences on Machine Translation
2014 and 2016; Cettolo et al. 2017, "Overview of the IWSLT 2017 Evaluation Campaign". Prompts as in RL4LMs.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import FilePath, expand_path, read_lines
from rl4dialog.data.splits import SPLIT_NAMES, TABLE_SUFFIXES, name_parts, split_files, table_rows

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
    """
    if isinstance(path, Mapping):
        files = path.get(split)
        if not isinstance(files, list | tuple) or len(files) != 2:
            raise DataError(f"path must contain two files for split {split!r}, [source, target], not {files!r}")
        return [(expand_path(files[0]), expand_path(files[1]))]
    folder = expand_path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; pass a folder, or path: {{train: [SOURCE, TARGET], ...}}")
    names = {"train": ("train",), "val": SPLIT_NAMES["val"], "test": ("test", "tst")}[split]
    is_name = re.compile(rf"(?:{'|'.join(names)})\d*|{'|'.join(map(re.escape, more_names)) or names[0]}").fullmatch
    sides: tuple[list[Path], list[Path]] = ([], [])
    for file in filter(Path.is_file, sorted(folder.iterdir())):
        parts = name_parts(file.name)
        while f".{parts[-1]}" in (*_MARKUP_SUFFIXES, ".gz"):
            parts.pop()
        for side, language, role in zip(sides, languages, ("src", "ref"), strict=True):
            is_of_direction = not {"src", "ref"} & set(parts) or {role, "".join(languages)} <= set(parts)
            if parts[-1] == language and is_of_direction and any(map(is_name, parts)):
                side.append(file)
    if not sides[0] or len(sides[0]) != len(sides[1]):
        found = (
            f"for {language!r}: {', '.join(file.name for file in side) or 'none'}"
            for language, side in zip(languages, sides, strict=True)
        )
        raise DataError(
            f"{folder} must contain a file of split {split!r} for each language, but has {' and '.join(found)}. Names "
            f"must have {' or '.join((*names, *more_names))} as a part and end with the language, such as "
            f"{names[0]}.{languages[0]}; or set path: {{{split}: [SOURCE, TARGET], ...}}"
        )
    return list(zip(*sides, strict=True))


def read_parallel_files(files: Sequence[tuple[Path, Path]]) -> list[tuple[str, str]]:
    """Read the sentence pairs of files."""
    pairs: list[tuple[str, str]] = []
    for source, target in files:
        first, second = _read_sentences(source), _read_sentences(target)
        if len(first) != len(second):
            counts = f"{len(first)} and {len(second)}"
            raise DataError(f"{source} and {target} must have the same number of sentences, not {counts}")
        pairs += zip(first, second, strict=True)
    return pairs


def _read_sentences(file: Path) -> list[str]:
    """Read a file's sentences: its lines, its ``<seg>`` elements, or lines without tags in IWSLT's train files."""
    lines = read_lines(file)
    if set(_MARKUP_SUFFIXES) & set(file.suffixes):
        return [" ".join(html.unescape(text).split()) for text in _SEGMENT.findall("\n".join(lines))]
    if "tags" in name_parts(file.name):
        lines = [line for line in lines if not line.lstrip().startswith("<")]
    return [line.strip() for line in lines]


_SOURCES = packaged_yaml(Path(__file__).with_suffix(".yaml"))


class Source(NamedTuple):
    """The source of a split."""

    dataset_id: str  # hub dataset
    name: str | None = "{pair}"  # its configuration, with ``{pair}`` for the languages, English last
    file_names: Sequence[str] = ()  # name parts of parallel files that identify the split, besides its own name


class _Translation(TextGenPool):
    """Sentences and their translations.

    Args:
        prompt_suffix: Text after the sentence.
        prompt_prefix: Text before the sentence, such as ``"translate English to German: "``.
        source_language: Language code of prompts.
        target_language: Language code of references.
        path: Folder with parallel files or tables, or ``{train: [SOURCE, TARGET], ...}``; default: the hub dataset.
        dataset_id: Hub dataset, instead of the default one.
    """

    id: ClassVar[str]

    @classmethod
    def prepare(
        cls,
        split: str,
        prompt_suffix: str = "",
        prompt_prefix: str = "",
        source_language: str = "en",
        target_language: str = "de",
        path: PairPath | None = None,
        max_size: Count | None = None,
        dataset_id: str | None = None,
    ) -> _Translation:
        """Load one split, with one reference per sample."""
        check_split(split)
        source = Source(**_SOURCES[cls.id][split])
        if dataset_id is not None:
            source = source._replace(dataset_id=dataset_id)
        pairs = _pairs(split, (source_language, target_language), path, source)
        samples = (
            Sample(f"{split}_{index}", prompt_prefix + text + prompt_suffix, [translation], {})
            for index, (text, translation) in enumerate(pairs)
            if text and translation
        )
        return cls(limit_samples(samples, max_size, cls.id, split, str(path or source.dataset_id)))


class WMT16(_Translation):
    """Translations from the Conferences on Machine Translation (WMT), in any of their languages.

    Args:
        wmt_id: Hub dataset to use without ``path``, such as ``wmt16`` or ``wmt/wmt14``.
    """

    id = "wmt16"

    @classmethod
    def prepare(  # type: ignore[override]
        cls,
        split: str,
        source_language: str,
        target_language: str,
        wmt_id: str = "wmt16",
        prompt_suffix: str = "",
        prompt_prefix: str = "",
        path: PairPath | None = None,
        max_size: Count | None = None,
    ) -> _Translation:
        dataset_id = wmt_id if "/" in wmt_id else f"wmt/{wmt_id}"
        return super().prepare(
            split, prompt_suffix, prompt_prefix, source_language, target_language, path, max_size, dataset_id
        )


class WMT14ProcessedEnDe(_Translation):
    """English and German news (WMT 2014), cleaned as for fairseq's translation models."""

    id = "wmt14_processed_en_de"


class WMT16NewsOnly(_Translation):
    """English and German news: News Commentary for training, WMT 2016's validation and test sets."""

    id = "wmt16newsonly"


class IWSLT2017EnDe(_Translation):
    """English and German TED talks (IWSLT 2017)."""

    id = "iwslt2017en_de"


def _pairs(split: str, languages: tuple[str, str], path: PairPath | None, source: Source) -> Iterable[tuple[str, str]]:
    """Return pairs of sentence and translation, which can be empty."""
    table_path = None
    if path is not None:
        if isinstance(path, Mapping) or not split_files(expand_path(path), TABLE_SUFFIXES):
            return read_parallel_files(find_parallel_files(split, path, languages, source.file_names))
        table_path = os.fspath(path)
    name = source.name and source.name.format(pair="-".join(sorted(languages, key=lambda language: language == "en")))
    rows = table_rows(split, table_path, source.dataset_id, "a folder with parallel files", name)
    columns = [f"translation.{language}" for language in languages]
    return ((row.text(columns[0]).strip(), row.text(columns[1]).strip()) for row in rows)
