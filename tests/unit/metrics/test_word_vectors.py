"""Word vectors from files and models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.metrics.word_vectors import ModelEmbeddings, VectorFile

LINES = "cat 1 0 0.5\ndog -1 2 0\n. . . 1 1 1\nnaïve 0 0 1\nCat 9 9 9\n"


@pytest.mark.parametrize("header", ["", "5 3\n"], ids=["glove", "word2vec"])
def test_words_are_found_as_written_or_in_lower_case(tmp_path: Path, header: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(header + LINES, encoding="utf-8")
    vectors = VectorFile(str(path))
    assert vectors("Cat cat DOG unknown naïve").tolist() == [[9, 9, 9], [1, 0, 0.5], [-1, 2, 0], [0, 0, 1]]
    assert vectors("").shape == vectors("unknown").shape == (0, 3)


def test_missing_file_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.*cannot be read.*glove\.6B\.zip"):
        VectorFile(str(tmp_path / "nowhere"))


def test_file_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("words\nalone\n")
    with pytest.raises(DataError, match=r"vectors\.txt is not a file of word vectors"):
        VectorFile(str(path))
    path.write_text("")
    with pytest.raises(DataError, match="is not a file of word vectors"):
        VectorFile(str(path))
    path.write_text("cat 1 2 3\ndog one two three\nmat 1 2\n")
    with pytest.raises(DataError, match="invalid numbers for the word 'dog'"):
        VectorFile(str(path))("dog")
    with pytest.raises(DataError, match="2 numbers for the word 'mat'"):
        VectorFile(str(path))("mat")


def test_embeddings_of_a_model_are_those_of_its_tokens(bert_folder: str) -> None:
    weight = AutoModel.from_pretrained(bert_folder).get_input_embeddings().weight.detach().numpy()
    vectors = ModelEmbeddings(bert_folder)
    assert np.array_equal(vectors("a cat"), weight[[5, 6]])
    assert vectors("").shape == (0, 16)


def test_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"word vectors .*nowhere.*cannot be loaded"):
        ModelEmbeddings(str(tmp_path / "nowhere"))
