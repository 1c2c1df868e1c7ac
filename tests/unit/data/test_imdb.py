"""IMDB from the original release, from tables and from a stand-in for the hub."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.imdb import HUB_ID, IMDB, IMDBForSeq2Seq
from rl4dialog.experiments.stand_in_data import IMDB_REVIEWS

Write = Callable[[dict[str, Any]], Path]


@pytest.fixture
def release(write: Write) -> Path:
    return write(IMDB_REVIEWS) / "aclImdb"


def test_prompt_is_the_first_half_of_the_words(release: Path) -> None:
    for sample, weight in IMDB.prepare("train", path=release):
        (text,) = sample.references
        assert text.startswith(sample.prompt_or_input_text) and weight == 1.0
        assert sample.prompt_or_input_text.split(" ") == text.split(" ")[:3]
        assert sample.meta_data == {"label": int(text.startswith("pos"))}


def test_splits_share_no_review_and_both_labels_are_mixed(release: Path) -> None:
    texts = {
        split: [s.references[0] for s, _ in IMDB.prepare(split, path=release)] for split in ("train", "val", "test")
    }
    assert {split: len(part) for split, part in texts.items()} == {"train": 16, "val": 4, "test": 20}
    assert {text for part in texts.values() for text in part} == {t for n, t in IMDB_REVIEWS.items() if "_7" in n}
    assert {text[:3] for text in texts["test"][:8]} == {"pos", "neg"}
    assert texts["val"] == [s.references[0] for s, _ in IMDB.prepare("val", path=release)]
    assert texts["val"] != [s.references[0] for s, _ in IMDB.prepare("val", path=release, seed=1)]


def test_archive_gives_the_same_samples_as_the_folder(release: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as tar:
        for name, text in reversed(IMDB_REVIEWS.items()):
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    from_archive = list(IMDB.prepare("train", path=tmp_path / "aclImdb_v1.tar.gz"))
    assert from_archive == list(IMDB.prepare("train", path=release)) == list(IMDB.prepare("train", path=tmp_path))


def test_max_size_is_that_of_rl4lms(write: Write) -> None:
    folder = write({"train.csv": "text,label\n" + "a b,1\nc d,0\n" * 1500})
    assert len(IMDB.prepare("train", path=folder)) == 2000
    assert len(IMDB.prepare("train", path=folder, max_size=None)) == 2400


def test_seq2seq_trains_on_the_second_half_of_positive_reviews(release: Path) -> None:
    pool = DataPoolRegistry.get("imdb_seq2seq", {"split": "train", "path": str(release)})
    for sample, _ in pool:
        text = sample.meta_data["reference"]
        assert f"{sample.prompt_or_input_text} {sample.references[0]}" == text
        assert sample.meta_data["label"] == 1 and text.startswith("pos")
    assert len(IMDBForSeq2Seq.prepare("train", 0.5, path=release)) == len(pool) // 2
    assert {sample.meta_data["label"] for sample, _ in IMDBForSeq2Seq.prepare("test", path=release)} == {0, 1}


def test_hub_rows_become_samples(fake_hub: Any) -> None:
    fake_hub[(HUB_ID, None)] = {"test": [{"text": "so so good", "label": 1}, {"text": "", "label": 0}]}
    samples = [sample for sample, _ in IMDB.prepare("test")]
    assert sorted((s.prompt_or_input_text, s.references[0]) for s in samples) == [("", ""), ("so", "so so good")]


def test_label_must_be_zero_or_one(write: Write) -> None:
    folder = write({"train.csv": "text,label\na b,positive\n"})
    with pytest.raises(
        DataError, match=r"train\.csv:2: label must be 0 \(negative\) or 1 \(positive\), not 'positive'"
    ):
        IMDB.prepare("train", path=folder)


def test_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains no .* file named after a split"):
        IMDB.prepare("train", path=tmp_path)
