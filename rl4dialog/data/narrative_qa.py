"""NarrativeQA: questions about a book or film, answered from its summary.

Reads the original release (``qaps.csv`` and ``third_party/wikipedia/summaries.csv``), UnifiedQA's ``train.tsv``,
``dev.tsv`` and ``test.tsv``, which RL4LMs uses, or the hub dataset, which is large because it contains the full
stories. License: Apache-2.0. Source: Kočiský et al. 2018, "The NarrativeQA Reading Comprehension Challenge". Prompts
are those of UnifiedQA, as in RL4LMs: the question, a literal backslash and n between spaces, and the summary, all in
lowercase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.hub import dataset_rows, load_hub_dataset, offline_hint
from rl4dialog.data.pool import TextGenPool, check_split, hub_split, limit_samples
from rl4dialog.data.rows import read_rows
from rl4dialog.data.splits import FILES_HINT, SplitPath
from rl4dialog.data.text_files import expand_path, read_lines

HUB_ID = "deepmind/narrativeqa"

_SEPARATOR = " \\n "
_UNIFIED_QA_FILES = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}
# Names of the splits in the column ``set``.
_SETS = {"train": "train", "val": "valid", "test": "test"}

# A question with the summary, and one answer.
Pair = tuple[str, str]


class NarrativeQA(TextGenPool):
    """Questions about stories with their summaries (NarrativeQA)."""

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath | None = None,
        max_size: Count | None = None,
        dataset_id: str = HUB_ID,
    ) -> NarrativeQA:
        """Load one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: Folder of the original release or of UnifiedQA's files, or one UnifiedQA file per split; by default
                the hub dataset is loaded.
            max_size: Keep only the first samples.
            dataset_id: Hub dataset to use without ``path``.

        Returns:
            A pool with one sample per question, and all its answers as references.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)
        answers: dict[str, list[str]] = {}
        for prompt, answer in _load_pairs(split, path, dataset_id):
            answers.setdefault(prompt.lower().strip(), []).append(answer.lower().strip())
        samples = (
            Sample(f"{split}_{index}", prompt, given, {}) for index, (prompt, given) in enumerate(answers.items())
        )
        return cls(limit_samples(samples, max_size, "narrative_qa", split, str(path or dataset_id)))


def _load_pairs(split: str, path: SplitPath | None, dataset_id: str) -> Iterable[Pair]:
    if path is None:
        return _hub_pairs(split, dataset_id)
    if isinstance(path, Mapping):
        if split not in path:
            raise DataError(f"path has no file for split {split!r}, only for {', '.join(path) or 'none'}. {FILES_HINT}")
        return _unified_qa_pairs(expand_path(path[split]))
    folder = expand_path(path)
    if (folder / "qaps.csv").is_file():
        return _original_pairs(split, folder)
    if (folder / _UNIFIED_QA_FILES[split]).is_file():
        return _unified_qa_pairs(folder / _UNIFIED_QA_FILES[split])
    raise DataError(
        f"{folder} contains no NarrativeQA files: tried qaps.csv (with third_party/wikipedia/summaries.csv) and "
        f"{_UNIFIED_QA_FILES[split]}"
    )


def _original_pairs(split: str, folder: Path) -> Iterator[Pair]:
    summaries_file = folder / "third_party" / "wikipedia" / "summaries.csv"
    summaries = {row.text("document_id"): row.text("summary") for row in read_rows(summaries_file)}
    for row in read_rows(folder / "qaps.csv"):
        if row.text("set") == _SETS[split]:
            document = row.text("document_id")
            if document not in summaries:
                raise row.error(f"{summaries_file} has no summary of document {document!r}")
            for column in ("answer1", "answer2"):
                yield _prompt(row.text("question"), summaries[document]), row.text(column)


def _unified_qa_pairs(file: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(file), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(
                f"{file}:{number}: expected 'question and summary<TAB>answer', but found {len(fields)} columns"
            )
        yield fields[0], fields[1]


def _hub_pairs(split: str, dataset_id: str) -> Iterator[Pair]:
    hint = offline_hint("the folder of the original release or of UnifiedQA's files")
    dataset = load_hub_dataset(dataset_id, hint, hub_split(split))
    # The full story takes some hundred kilobytes per row, so that column is not loaded.
    dataset = dataset.flatten()
    dataset = dataset.remove_columns([name for name in dataset.column_names if name == "document.text"])
    for row in dataset_rows(dataset, f"hub dataset {dataset_id!r}, split {hub_split(split)}"):
        prompt = _prompt(row.text("question.text"), row.text("document.summary.text"))
        for answer in row.texts("answers.text"):
            yield prompt, answer


def _prompt(question: str, summary: str) -> str:
    return question + _SEPARATOR + " ".join(summary.split())
