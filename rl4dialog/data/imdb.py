"""IMDB: film reviews to continue, with their sentiment.

Reads the original release (the folder ``aclImdb`` or ``aclImdb_v1.tar.gz``), table files or a hub dataset with the
columns ``text`` and ``label`` (0 negative, 1 positive). The authors specify no license and ask for a citation: Maas et
al. 2011, "Learning Word Vectors for Sentiment Analysis". Tasks, splits and prompts as in RL4LMs, except that sampling
is seeded: RL4LMs' ``train`` and ``val`` differ in every call and overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Sample
from rl4dialog.data.hub import table_rows
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.splits import SplitPath, share_of, shuffled
from rl4dialog.data.text_files import decode_lines, expand_path, walk_files

HUB_ID = "stanfordnlp/imdb"

_TRAIN_SHARE = 0.8
_N_TEST = 5000
_REVIEW_FILE = re.compile(r"(?:^|/)(train|test)/(pos|neg)/\d+_\d+\.txt$")

Review = tuple[str, int]


class IMDB(TextGenPool):
    """Film reviews (IMDB): the prompt is the first half, the reference the whole review."""

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath | None = None,
        max_size: Count | None = 2000,
        seed: int = 0,
        dataset_id: str = HUB_ID,
    ) -> IMDB:
        """Load one split; ``val`` is a fifth of the original train split, ``test`` 5,000 reviews of the original test.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: The folder ``aclImdb``, its archive, or table files; by default the hub dataset is loaded.
            max_size: Keep only this many random samples; ``None`` for all.
            seed: Random seed of selection and order.
            dataset_id: Hub dataset to use without ``path``.

        Returns:
            A pool whose samples have the ``label`` of the review in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        reviews = load_reviews(split, path, dataset_id, seed)
        samples = (
            Sample(index, _halves(text)[0], [text], {"label": label}) for index, (text, label) in enumerate(reviews)
        )
        return cls(limit_samples(samples, max_size, "imdb", split, str(path or dataset_id)))


class IMDBForSeq2Seq(TextGenPool):
    """Film reviews (IMDB): the prompt is the first half, the reference the second; ``train`` has only positive ones."""

    @classmethod
    def prepare(
        cls,
        split: str,
        positive_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0,
        path: SplitPath | None = None,
        max_size: Count | None = None,
        seed: int = 0,
        dataset_id: str = HUB_ID,
    ) -> IMDBForSeq2Seq:
        """Load one split; see `IMDB.prepare`.

        Args:
            split: ``train`` (only positive reviews), ``val`` or ``test``.
            positive_ratio: Share of the positive reviews to keep in ``train``.
            path: The folder ``aclImdb``, its archive, or table files; by default the hub dataset is loaded.
            max_size: Keep only this many random samples.
            seed: Random seed of selection and order.
            dataset_id: Hub dataset to use without ``path``.

        Returns:
            A pool whose samples have the review's ``label`` and its full text as ``reference`` in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        reviews = load_reviews(split, path, dataset_id, seed)
        samples = []
        for index, (text, label) in enumerate(reviews):
            if split != "train" or label == 1:
                prompt, rest = _halves(text)
                samples.append(Sample(index, prompt, [rest], {"reference": text, "label": label}))
        if split == "train":
            samples = samples[: share_of(len(samples), positive_ratio)]
        return cls(limit_samples(samples, max_size, "imdb_seq2seq", split, str(path or dataset_id)))


def load_reviews(split: str, path: SplitPath | None, dataset_id: str = HUB_ID, seed: int = 0) -> list[Review]:
    """Load the reviews of one split with their labels (0 negative, 1 positive), in a seeded random order.

    Raises:
        DataError: If the data is missing or malformed.
    """
    check_split(split)
    original_split = "test" if split == "test" else "train"
    reviews = _original_reviews(original_split, path)
    if not reviews:
        reviews = list(_table_reviews(original_split, path, dataset_id))
    order = shuffled(len(reviews), f"imdb/{seed}/{original_split}")
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

    def is_review(name: str) -> bool:
        match = _REVIEW_FILE.search(name)
        return match is not None and match.group(1) == split

    # Sorted by name, so that the folder and the archive give the same order.
    found = sorted((name.split(f"{split}/")[-1], name, data) for name, data in walk_files(place, is_review))
    return [("\n".join(decode_lines(data, name)), int(short.startswith("pos"))) for short, name, data in found]


def _table_reviews(split: str, path: SplitPath | None, dataset_id: str) -> Iterator[Review]:
    rows: Iterable = table_rows(split, path, dataset_id, "the folder aclImdb of the original release")
    for row in rows:
        if row["label"] not in (0, 1, "0", "1"):
            raise row.error(f"label must be 0 (negative) or 1 (positive), not {row['label']!r}")
        yield row.text("text"), int(row["label"])


def _halves(text: str) -> tuple[str, str]:
    """Split a text in the middle of its words, which are separated by single spaces."""
    words = text.split(" ")
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])
