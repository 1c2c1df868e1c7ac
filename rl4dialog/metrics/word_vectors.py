"""Vectors of words: from a text file as word2vec and GloVe are published, or a language model's input embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.core.hub import load_pretrained
from rl4dialog.text.words import split_words

# The vectors of a text's words, those without one left out. Shape (words, dimensions).
TextVectors = Callable[[str], np.ndarray]


class VectorFile:
    """Vectors from a text file: a word and its numbers per line, with or without a first line of two counts.

    Only the places of the words are kept in memory; lines are read when their word is asked for.

    Args:
        path: The file.

    Raises:
        DataError: If there is no such file, or it has not this form.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()
        self._places: dict[str, int] = {}
        self._known: dict[str, np.ndarray] = {}
        self._n_dimensions = 0
        try:
            self._index()
        except OSError as error:
            raise DataError(
                f"the file of word vectors {path!r} cannot be read ({error.strerror or error}); download and unpack "
                f"one in text form, for instance glove.6B.zip of https://nlp.stanford.edu/projects/glove"
            ) from error

    def __call__(self, text: str) -> np.ndarray:
        """The vectors of a text's words, as they are written or else in lower case. Shape (words, dimensions)."""
        candidates = [word if word in self._places else word.lower() for word in split_words(text)]
        found = [self._vector(word) for word in candidates if word in self._places]
        return np.array(found).reshape(len(found), self._n_dimensions)

    def _index(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise OSError("it is no file")
        with self._path.open("rb") as file:
            place, line = 0, file.readline()
            if len(line.split()) == 2:  # word2vec's first line: how many words and dimensions
                place, line = file.tell(), file.readline()
            self._n_dimensions = len(line.split()) - 1
            if self._n_dimensions < 1:
                raise DataError(f"{self._path} is no file of word vectors: no line holds a word and its numbers")
            while line:
                # A few words of GloVe contain spaces.
                word = line.rstrip().rsplit(b" ", self._n_dimensions)[0].decode("utf-8", "replace")
                self._places.setdefault(word, place)
                place, line = file.tell(), file.readline()

    def _vector(self, word: str) -> np.ndarray:
        if word not in self._known:
            with self._path.open("rb") as file:
                file.seek(self._places[word])
                numbers = file.readline().rstrip().rsplit(b" ", self._n_dimensions)[1:]
            try:
                vector = np.array([float(number) for number in numbers])
            except ValueError as error:
                raise DataError(f"{self._path} has no numbers for the word {word!r}: {error}") from error
            if len(vector) != self._n_dimensions:
                raise DataError(
                    f"{self._path} has {len(vector)} numbers for the word {word!r}, not the first line's "
                    f"{self._n_dimensions}"
                )
            self._known[word] = vector
        return self._known[word]


class ModelEmbeddings:
    """The input embeddings of a model of transformers, a vector per token.

    Args:
        model_name: Folder or hub id.

    Raises:
        ModelError: If model or tokenizer cannot be loaded.
    """

    def __init__(self, model_name: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        what, hint = "model for word vectors", "Give the folder of a model, or a hub id while there is a network."
        self._tokenizer = load_pretrained(AutoTokenizer, model_name, what, hint)
        model = load_pretrained(AutoModel, model_name, what, hint)
        self._vectors = model.get_input_embeddings().weight.detach().float().cpu().numpy()

    def __call__(self, text: str) -> np.ndarray:
        """The vectors of a text's tokens. Shape (tokens, dimensions)."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        found: np.ndarray = self._vectors[np.array(ids, dtype=int)]
        return found
