"""Texts from data: sentences from a few words (CommonGen), and from cells of tables (ToTTo).

CommonGen: everyday sentences that use all of a few given words. Reads the original release (``commongen.dev.jsonl``, or
``commongen.dev.src_alpha.txt`` with ``commongen.dev.tgt.txt``, likewise for ``train`` and ``test``), table files or a
hub dataset with the columns ``concepts`` and ``target``. MIT license. Source: Lin et al. 2020, "CommonGen: A
Constrained Text Generation Challenge for Generative Commonsense Reasoning"; prompts as in RL4LMs.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row, TypedRow, expand_path, json_row, read_lines
from rl4dialog.data.splits import SplitPath, table_rows

COMMONGEN_ID = "allenai/common_gen"

_PREFIXES = {"train": "commongen.train", "val": "commongen.dev", "test": "commongen.test"}
_TEST_INPUTS = ("commongen.test_noref.jsonl", "commongen.test_input.jsonl")
_PART_OF_SPEECH = re.compile(r"_[A-Z]$")
_TRAILING_COMMA = re.compile(r",\s*}\s*$")

# A set of words, and one sentence that uses them (empty if the test set hides it).
Pair = tuple[tuple[str, ...], str]


class CommonGen(TextGenPool):
    """Sentences that use all of a few given words (CommonGen).

    Args:
        concept_separator_token: Text between the words.
        concept_end_token: Text after the last word.
        prefix: Text before the first word.
        path: Folder of the original release, or table files; by default the hub dataset is loaded.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        concept_separator_token: str = " ",
        concept_end_token: str = " ",
        prefix: str = "summarize: ",
        path: SplitPath | None = None,
        max_size: Count | None = None,
        dataset_id: str = COMMONGEN_ID,
    ) -> CommonGen:
        """Load one split: for ``train`` one sample per sentence, otherwise one per set of words with all its sentences.

        Samples have the words as ``concepts`` in their meta data; one with hidden sentences has one empty reference.
        """
        check_split(split)
        pairs = _load_pairs(split, path, dataset_id)
        # Grouped only if adjacent: two sets can have the same words as different parts of speech.
        groups = itertools.groupby(pairs, operator.itemgetter(0))
        entries = ((words, [sentence for _, sentence in group]) for words, group in groups)
        if split == "train":
            entries = ((words, [sentence]) for words, sentence in pairs)
        samples = (
            Sample(index, f"{prefix}{joined}{concept_end_token}", sentences, {"concepts": list(words)})
            for index, (words, sentences) in enumerate(entries)
            for joined in [concept_separator_token.join(words)]
        )
        return cls(limit_samples(samples, max_size, "commongen", split, str(path or dataset_id)))


def _load_pairs(split: str, path: SplitPath | None, dataset_id: str) -> Iterable[Pair]:
    if path is not None and not isinstance(path, Mapping):
        folder = expand_path(path)
        words, sentences = (folder / f"{_PREFIXES[split]}.{kind}.txt" for kind in ("src_alpha", "tgt"))
        has_texts = words.is_file() and sentences.is_file()
        # The released test set has no sentences; formatted copies have them, and are preferred.
        names = [f"{_PREFIXES[split]}.jsonl", *(_TEST_INPUTS if split == "test" and not has_texts else ())]
        for file in (folder / name for name in names if (folder / name).is_file()):
            # Some lines of the release end with ", }", which is not valid JSON.
            lines = (_TRAILING_COMMA.sub("}", line) for line in read_lines(file))
            return _row_pairs(json_row(line, f"{file}:{number}") for number, line in enumerate(lines, start=1))
        if has_texts:
            of_words, of_sentences = read_lines(words), read_lines(sentences)
            if len(of_words) != len(of_sentences):
                counts = f"{len(of_words)} and {len(of_sentences)}"
                raise DataError(f"{words} and {sentences} must have equally many lines, not {counts}")
            return ((tuple(one.split()), other.strip()) for one, other in zip(of_words, of_sentences, strict=True))
    return _row_pairs(table_rows(split, path, dataset_id, "the folder with CommonGen's files"))


def _row_pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Pairs from rows of the release (``concept_set``, ``scene``) or the hub (``concepts``, ``target``).

    GEM's copy also has all sentences of a set as ``references``.
    """
    for row in rows:
        if "concepts" in row:
            words = row.texts("concepts")
            sentences = row.texts("references") if row.get("references") else row.texts("target")
        else:
            words = [_PART_OF_SPEECH.sub("", word) for word in row.text("concept_set").split("#")]
            sentences = row.texts("scene") if row.get("scene") else [""]
        for sentence in sentences:
            yield tuple(words), sentence


# ToTTo: sentences that describe the highlighted cells of a Wikipedia table.
#
# Reads the original release (``totto_train_data.jsonl``, ``totto_dev_data.jsonl``,
# ``unlabeled_totto_test_data.jsonl``), table files or a hub dataset with the same columns. License: CC BY-SA 3.0.
# Source: Parikh et al. 2020, "ToTTo: A Controlled Table-To-Text Generation Dataset", with its baseline's tables.
TOTTO_ID = "google-research-datasets/totto"
Representation = Literal["subtable", "fulltable"]

# Placeholder for sentences in the hub's test split.
_HIDDEN = "none"


class _TableCell(TypedRow):
    value: str
    is_header: bool
    column_span: int


class Example(TypedRow):
    """The table of an example."""

    table: list[list[_TableCell]]
    highlighted_cells: list[Annotated[list[int], Field(min_length=2, max_length=2)]]


class ToTTo(TextGenPool):
    """Sentences about highlighted cells of tables (ToTTo).

    Args:
        split: ``train``, ``val`` or ``test`` (without published sentences).
        representation: Table in the prompt, which contains it once without and once with the page's titles:
            ``subtable`` (the highlighted cells) or ``fulltable``.
        path: Folder of the original release, a file per split, or table files; by default the hub dataset is loaded.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        representation: Representation = "subtable",
        path: SplitPath | None = None,
        max_size: Count | None = None,
        dataset_id: str = TOTTO_ID,
    ) -> ToTTo:
        """Load one split, whose samples have the whole example as ``raw_table`` in their meta data, for PARENT.

        A sample without sentences has one empty reference.
        """
        check_split(split)
        rows = table_rows(split, path, dataset_id, "the folder of ToTTo's original release")
        samples = (_sample(f"{split}_{index}", row, representation) for index, row in enumerate(rows))
        return cls(limit_samples(samples, max_size, "totto", split, str(path or dataset_id)))


def _sample(id: str, row: Row, representation: str) -> Sample:
    example = row.parsed(Example)
    cells, highlighted = table_cells(example.table), [(i, j) for i, j in example.highlighted_cells]
    for i, j in highlighted:
        if not (0 <= i < len(cells) and 0 <= j < len(cells[i])):
            raise row.error(f"highlighted cell [{i}, {j}] is not in the table of {len(cells)} rows")
    if representation == "subtable":
        table = "".join(f"<cell> {cells[i][j]}</cell> " for i, j in highlighted)
    else:
        table = ""
        for i, row_cells in enumerate(cells):
            tags = ["highlighted_cell" if (i, j) in highlighted else "cell" for j in range(len(row_cells))]
            texts = (f"<{tag}> {cell}</{tag}> " for tag, cell in zip(tags, row_cells, strict=True))
            table += f"<row> {''.join(texts)}</row> "
    table = f"<table> {table}</table>"
    titles = (("page_title", row.text("table_page_title")), ("section_title", row.text("table_section_title")))
    shown_titles = "".join(f"<{tag}> {text} </{tag}> " for tag, text in titles if text)
    annotations = _annotations(row)
    references = row.texts("sentence_annotations.final_sentence") if annotations else [""]
    if set(references) == {_HIDDEN}:
        references = [""]
    overlaps = str(row.get("overlap_subset")) == "True"
    row.unread.clear()
    raw_table = {**row.values, "sentence_annotations": annotations, "overlap_subset": overlaps}
    return Sample(id, table + shown_titles + table, references, {"raw_table": raw_table})


def table_cells(table: Sequence[Sequence[_TableCell]]) -> list[list[str]]:
    """Write every cell with its headers, which are determined by the heuristic of ToTTo's baseline.

    Headers of a cell are the header cells to its left in its row, and the header cells above it whose columns overlap
    with its own. Columns are counted by ``column_span``; a ``row_span`` does not shift the rows below.
    """
    above: list[tuple[int, int, str]] = []
    result = []
    for row in table:
        cells: list[str] = []
        row_headers = ""
        here: list[tuple[int, int, str]] = []
        start = 0
        for cell in row:
            end = start + cell.column_span
            overlapping = (text for first, last, text in above if first < end and last > start)
            col_headers = "".join(f"<col_header> {text} </col_header> " for text in overlapping)
            cells.append(f"{cell.value} {col_headers}{row_headers}")
            if cell.is_header:
                row_headers += f"<row_header> {cell.value} </row_header> "
                here.append((start, end, cell.value))
            start = end
        above += here
        result.append(cells)
    return result


def _annotations(row: Row) -> list[dict[str, Any]]:
    """Return the sentences with their stages of editing; the hub stores a list per stage instead of a list of them."""
    annotations = row.get("sentence_annotations") or []
    if isinstance(annotations, dict):
        names = list(annotations)
        annotations = [dict(zip(names, stages, strict=True)) for stages in zip(*annotations.values(), strict=True)]
    return list(annotations)
