"""CommonGen: everyday sentences that use all of a few given words.

Reads the original release (``commongen.dev.jsonl``, or ``commongen.dev.src_alpha.txt`` with ``commongen.dev.tgt.txt``,
likewise for ``train`` and ``test``), table files or a hub dataset with the columns ``concepts`` and ``target``. MIT
license. Source: Lin et al. 2020, "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense
Reasoning"; prompts as in RL4LMs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.hub import table_rows
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row, parse_json
from rl4dialog.data.splits import SplitPath
from rl4dialog.data.text_files import expand_path, read_lines

HUB_ID = "allenai/common_gen"

_PREFIXES = {"train": "commongen.train", "val": "commongen.dev", "test": "commongen.test"}
_TEST_INPUTS = ("commongen.test_noref.jsonl", "commongen.test_input.jsonl")
_PART_OF_SPEECH = re.compile(r"_[A-Z]$")
_TRAILING_COMMA = re.compile(r",\s*}\s*$")

# A set of words, and one sentence that uses them (empty if the test set hides it).
Pair = tuple[tuple[str, ...], str]


class CommonGen(TextGenPool):
    """Sentences that use all of a few given words (CommonGen)."""

    @classmethod
    def prepare(
        cls,
        split: str,
        concept_separator_token: str = " ",
        concept_end_token: str = " ",
        prefix: str = "summarize: ",
        path: SplitPath | None = None,
        max_size: Count | None = None,
        dataset_id: str = HUB_ID,
    ) -> CommonGen:
        """Load one split: for ``train`` one sample per sentence, otherwise one per set of words with all its sentences.

        Args:
            split: ``train``, ``val`` or ``test``.
            concept_separator_token: Text between the words.
            concept_end_token: Text after the last word.
            prefix: Text before the first word.
            path: Folder of the original release, or table files; by default the hub dataset is loaded.
            max_size: Keep only the first samples.
            dataset_id: Hub dataset to use without ``path``.

        Returns:
            A pool whose samples have the words as ``concepts`` in their meta data. A sample with hidden sentences has
            one empty reference.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)
        pairs = _load_pairs(split, path, dataset_id)
        entries = ((words, [sentence]) for words, sentence in pairs) if split == "train" else _grouped(pairs)
        samples = (
            Sample(
                index,
                prefix + concept_separator_token.join(words) + concept_end_token,
                sentences,
                {"concepts": list(words)},
            )
            for index, (words, sentences) in enumerate(entries)
        )
        return cls(limit_samples(samples, max_size, "commongen", split, str(path or dataset_id)))


def _load_pairs(split: str, path: SplitPath | None, dataset_id: str) -> Iterable[Pair]:
    if path is not None and not isinstance(path, Mapping):
        folder = expand_path(path)
        words, sentences = (folder / f"{_PREFIXES[split]}.{kind}.txt" for kind in ("src_alpha", "tgt"))
        has_texts = words.is_file() and sentences.is_file()
        # The released test set has no sentences; formatted copies have them, and are preferred.
        names = [f"{_PREFIXES[split]}.jsonl", *(_TEST_INPUTS if split == "test" and not has_texts else ())]
        for name in names:
            if (folder / name).is_file():
                return _row_pairs(_json_rows(folder / name))
        if has_texts:
            return _text_pairs(words, sentences)
    return _row_pairs(table_rows(split, path, dataset_id, "the folder with CommonGen's files"))


def _json_rows(file: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(file), start=1):
        place = f"{file}:{number}"
        # Some lines of the release end with ", }", which is not valid JSON.
        values = parse_json(_TRAILING_COMMA.sub("}", line), place)
        yield Row(values if isinstance(values, dict) else {}, place)


def _text_pairs(words_file: Path, sentences_file: Path) -> Iterator[Pair]:
    words, sentences = read_lines(words_file), read_lines(sentences_file)
    if len(words) != len(sentences):
        raise DataError(
            f"{words_file} and {sentences_file} must have equally many lines, not {len(words)} and {len(sentences)}"
        )
    return ((tuple(line.split()), sentence.strip()) for line, sentence in zip(words, sentences, strict=True))


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


def _grouped(pairs: Iterable[Pair]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    # Grouped only if adjacent: two sets can have the same words as different parts of speech.
    for words, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield words, [sentence for _, sentence in group]
