"""Published documents to continue, summarize or ask about: IMDB, CNN/DailyMail, NarrativeQA.

IMDB: film reviews to continue, with their sentiment. Reads the original release (the folder ``aclImdb`` or
``aclImdb_v1.tar.gz``), table files or a hub dataset with the columns ``text`` and ``label`` (0 negative, 1 positive).
The authors specify no license and ask for a citation: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis".
Tasks, splits and prompts as in RL4LMs, but with seeded sampling: its ``train`` and ``val`` overlap, and always differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data import splits
from rl4dialog.data.pool import TextGenPool, check_split, hub_split, limit_samples
from rl4dialog.data.rows import Row, decode_lines, expand_path, read_lines, read_rows, walk_files
from rl4dialog.data.splits import SplitPath

IMDB_ID = "stanfordnlp/imdb"

_TRAIN_SHARE = 0.8
_N_TEST = 5000
Review = tuple[str, int]


class IMDB(TextGenPool):
    """Film reviews (IMDB): the prompt is the first half, the reference the whole review.

    Args:
        path: The folder ``aclImdb``, its archive, or table files; by default the hub dataset is loaded.
        max_size: Keep only this many random samples.
        seed: Random seed of selection and order.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath | None = None,
        max_size: Count | None = None,
        seed: int = 0,
        dataset_id: str = IMDB_ID,
    ) -> IMDB:
        """Load one split; ``val`` is a fifth of the original train split, ``test`` 5,000 reviews of the original test.

        Samples have the ``label`` of the review in their meta data.
        """
        reviews = load_reviews(split, path, dataset_id, seed)
        samples = (
            Sample(index, _halves(text)[0], [text], {"label": label}) for index, (text, label) in enumerate(reviews)
        )
        return cls(limit_samples(samples, max_size, "imdb", split, str(path or dataset_id)))


class IMDBForSeq2Seq(TextGenPool):
    """Film reviews (IMDB): the prompt is the first half, the reference the second; ``train`` has only positive ones.

    Args:
        split: ``train`` (only positive reviews), ``val`` or ``test``.
        positive_ratio: Share of the positive reviews to keep in ``train``.
        path: The folder ``aclImdb``, its archive, or table files; by default the hub dataset is loaded.
        max_size: Keep only this many random samples.
        seed: Random seed of selection and order.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        positive_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0,
        path: SplitPath | None = None,
        max_size: Count | None = None,
        seed: int = 0,
        dataset_id: str = IMDB_ID,
    ) -> IMDBForSeq2Seq:
        """Load one split as `IMDB.prepare`; meta data are the review's ``label`` and its full text, ``reference``."""
        samples = [
            Sample(index, prompt, [rest], {"reference": text, "label": label})
            for index, (text, label) in enumerate(load_reviews(split, path, dataset_id, seed))
            if split != "train" or label == 1
            for prompt, rest in [_halves(text)]
        ]
        if split == "train":
            samples = samples[: splits.share_of(len(samples), positive_ratio)]
        return cls(limit_samples(samples, max_size, "imdb_seq2seq", split, str(path or dataset_id)))


def load_reviews(split: str, path: SplitPath | None, dataset_id: str = IMDB_ID, seed: int = 0) -> list[Review]:
    """Load the reviews of one split with their labels (0 negative, 1 positive), in a seeded random order."""
    check_split(split)
    original = "test" if split == "test" else "train"
    reviews = _original_reviews(original, path) or list(_table_reviews(original, path, dataset_id))
    order = splits.shuffled(len(reviews), f"imdb/{seed}/{original}")
    n_train = int(len(order) * _TRAIN_SHARE)
    parts = {"train": order[:n_train], "val": order[n_train:], "test": order[:_N_TEST]}
    return [reviews[i] for i in parts[split]]


def _original_reviews(split: str, path: SplitPath | None) -> list[Review]:
    """Return reviews of the original release; none if the path is something else."""
    if not isinstance(path, str | Path):
        return []
    place = expand_path(path)
    if not place.is_dir() and not {".tar", ".tgz", ".zip"} & set(place.suffixes):
        return []
    is_review = re.compile(rf"(?:^|/){split}/(?:pos|neg)/\d+_\d+\.txt$").search
    # Sorted by name, so that the folder and the archive give the same order.
    found = sorted((name.split(f"{split}/")[-1], name, data) for name, data in walk_files(place, is_review))
    return [("\n".join(decode_lines(data, name)), int(short.startswith("pos"))) for short, name, data in found]


def _table_reviews(split: str, path: SplitPath | None, dataset_id: str) -> Iterator[Review]:
    for row in splits.table_rows(split, path, dataset_id, "the folder aclImdb of the original release"):
        if row["label"] not in (0, 1, "0", "1"):
            raise row.error(f"label must be 0 (negative) or 1 (positive), not {row['label']!r}")
        yield row.text("text"), int(row["label"])


def _halves(text: str) -> tuple[str, str]:
    """Split a text in the middle of its words, which are separated by single spaces."""
    words = text.split(" ")
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


# CNN/DailyMail: news articles, with their highlights as the summary.
#
# Reads the original release (``cnn/stories`` and ``dailymail/stories``, with the URL lists ``all_train.txt``,
# ``all_val.txt`` and ``all_test.txt``, which assign stories to splits), the tokenized JSON files of PreSumm
# (``cnndm.train.0.json``, with ``src`` and ``tgt``), table files or a hub dataset with the columns ``article`` and
# ``highlights``. License: Apache-2.0 on the hub; publishers hold the rights to the articles. Sources: Hermann et al.
# 2015, "Teaching Machines to Read and Comprehend"; See et al. 2017, "Get To The Point"; prompts as in RL4LMs.
CNN_ID = "abisee/cnn_dailymail"
_CNN_NAME = "3.0.0"

_HIGHLIGHT = "@highlight"
_LINE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


class CNNDailyMail(TextGenPool):
    """News articles to summarize (CNN/DailyMail).

    Args:
        prompt_suffix: Text after the article.
        prompt_prefix: Text before the article.
        truncate_article: Keep this many words and punctuation marks of an article, joined by spaces.
        path: Folder of the original release, or table files; by default the hub dataset is loaded.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        prompt_suffix: str = "",
        prompt_prefix: str = "",
        truncate_article: Count | None = None,
        max_size: Count | None = None,
        path: SplitPath | None = None,
        dataset_id: str = CNN_ID,
    ) -> CNNDailyMail:
        """Load one split with the highlights as the only reference, one per line."""
        check_split(split)

        def samples() -> Iterator[Sample]:
            for index, (article, highlights) in enumerate(_load_articles(split, path, dataset_id)):
                if truncate_article is not None:
                    article = " ".join(_tokenize(article)[:truncate_article])
                yield Sample(f"{split}_{index}", prompt_prefix + article + prompt_suffix, [highlights], {})

        return cls(limit_samples(samples(), max_size, "cnn_daily_mail", split, str(path or dataset_id)))


def _load_articles(split: str, path: SplitPath | None, dataset_id: str) -> Iterator[tuple[str, str]]:
    """Yield articles and their highlights."""
    if isinstance(path, str | Path) and (folder := expand_path(path)).is_dir():
        name = f"all_{split}.txt"
        for url_list in (file for file in (folder / name, *sorted(folder.glob(f"*/{name}"))) if file.is_file()):
            yield from _read_stories(folder, url_list)
            return
    for row in splits.table_rows(
        split, path, dataset_id, "the folder with CNN/DailyMail's stories and URL lists", _CNN_NAME
    ):
        if "src" in row and "tgt" in row:
            yield " ".join(_sentences(row, "src")), "\n".join(_sentences(row, "tgt"))
        else:
            yield row.text("article"), row.text("highlights")


def _read_stories(folder: Path, url_list: Path) -> Iterator[tuple[str, str]]:
    stories = {file.stem: file for file in sorted(folder.rglob("*.story"))}
    if not stories:
        raise DataError(f"{folder} contains the URL list {url_list.name} but no .story files")
    for url in read_lines(url_list):
        # A few URLs have no story in the release.
        if story := stories.get(hashlib.sha1(url.strip().encode()).hexdigest()):
            article, highlights = parse_story(read_lines(story))
            if article and highlights:
                yield article, highlights


def parse_story(lines: Iterable[str]) -> tuple[str, str]:
    """Article and highlights of a story, as in version 3.0.0 of the hub dataset.

    A highlight follows each ``@highlight``; article and highlights become lines. Paragraphs without an end get `` .``.
    """
    article: list[str] = []
    highlights: list[str] = []
    is_highlight = False
    for line in map(str.strip, lines):
        if line.startswith(_HIGHLIGHT):
            is_highlight = True
        elif line:
            (highlights if is_highlight else article).append(line if line.endswith(_LINE_ENDS) else f"{line} .")
    return " ".join(article), "\n".join(highlights)


def _sentences(row: Row, column: str) -> list[str]:
    """Join the words of each sentence in a column with a list of words per sentence."""
    try:
        return [" ".join(sentence) for sentence in row[column]]
    except TypeError as error:
        raise row.error(f"column {column!r} must be a list of sentences, each a list of words") from error


def _tokenize(text: str) -> list[str]:
    """Split into words and punctuation marks like nltk's ``word_tokenize``, with a sentence splitter without data."""
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    words = NLTKWordTokenizer()
    return [word for sentence in PunktSentenceTokenizer().tokenize(text) for word in words.tokenize(sentence)]


# NarrativeQA: questions about a book or film, answered from its summary.
#
# Reads the original release (``qaps.csv`` and ``third_party/wikipedia/summaries.csv``), UnifiedQA's ``train.tsv``,
# ``dev.tsv`` and ``test.tsv``, which RL4LMs uses, or the hub dataset, which is large because it contains the full
# stories. License: Apache-2.0. Source: Kočiský et al. 2018, "The NarrativeQA Reading Comprehension Challenge". Prompts
# are those of UnifiedQA, as in RL4LMs, in lowercase: the question, a literal backslash and n between spaces, summary.
NARRATIVE_QA_ID = "deepmind/narrativeqa"

_SEPARATOR = " \\n "
_UNIFIED_QA_FILES = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}
# Names of the splits in the column ``set``.
_SETS = {"train": "train", "val": "valid", "test": "test"}

# A question with the summary, and one answer.
Pair = tuple[str, str]


class NarrativeQA(TextGenPool):
    """Questions about stories with their summaries (NarrativeQA).

    Args:
        path: Folder of the original release or of UnifiedQA's files, or one per split; default: the hub dataset.
    """

    @classmethod
    def prepare(
        cls, split: str, path: SplitPath | None = None, max_size: Count | None = None, dataset_id: str = NARRATIVE_QA_ID
    ) -> NarrativeQA:
        """Load one split with one sample per question, and all its answers as references."""
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
            raise DataError(
                f"path has no file for split {split!r}, only for {', '.join(path) or 'none'}. {splits.FILES_HINT}"
            )
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
        if line.count("\t") != 1:
            n = line.count("\t") + 1
            raise DataError(f"{file}:{number}: expected 'question and summary<TAB>answer', but found {n} columns")
        question, answer = line.split("\t")
        yield question, answer


def _hub_pairs(split: str, dataset_id: str) -> Iterator[Pair]:
    hint = splits.offline_hint("the folder of the original release or of UnifiedQA's files")
    # The full story takes some hundred kilobytes per row, so that column is not loaded.
    dataset = splits.load_hub_dataset(dataset_id, hint, hub_split(split)).flatten()
    dataset = dataset.remove_columns([name for name in dataset.column_names if name == "document.text"])
    for row in splits.dataset_rows(dataset, f"hub dataset {dataset_id!r}, split {hub_split(split)}"):
        prompt = _prompt(row.text("question.text"), row.text("document.summary.text"))
        for answer in row.texts("answers.text"):
            yield prompt, answer


def _prompt(question: str, summary: str) -> str:
    return question + _SEPARATOR + " ".join(summary.split())
