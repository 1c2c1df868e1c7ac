"""Word vectors, from a text file in the format of word2vec and GloVe, or from a language model's input embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.text.words import split_words

# Maps a text to the vectors of its known words. Shape (words, dimensions).
TextVectors = Callable[[str], np.ndarray]


class VectorFile:
    """Vectors from a text file with a word and its numbers per line, with or without word2vec's header line.

    Only file offsets are kept in memory; a line is read when its word is looked up.

    Args:
        path: The file.
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
                f"the file of word vectors {path!r} cannot be read ({error.strerror or error}); download and unpack a "
                f"text file, such as glove.6B.zip from https://nlp.stanford.edu/projects/glove"
            ) from error

    def __call__(self, text: str) -> np.ndarray:
        """Look up the vectors of a text's words, as written or in lower case. Shape (words, dimensions)."""
        candidates = [word if word in self._places else word.lower() for word in split_words(text)]
        found = [self._vector(word) for word in candidates if word in self._places]
        return np.array(found).reshape(len(found), self._n_dimensions)

    def _index(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise OSError("not a regular file")
        with self._path.open("rb") as file:
            place, line = 0, file.readline()
            if len(line.split()) == 2:  # word2vec's header: numbers of words and dimensions
                place, line = file.tell(), file.readline()
            self._n_dimensions = len(line.split()) - 1
            if self._n_dimensions < 1:
                raise DataError(f"{self._path} is not a file of word vectors: it has no line with a word and numbers")
            while line:
                # A few words in GloVe contain spaces.
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
                raise DataError(f"{self._path} has invalid numbers for the word {word!r}: {error}") from error
            if len(vector) != self._n_dimensions:
                raise DataError(
                    f"{self._path} has {len(vector)} numbers for the word {word!r}, but {self._n_dimensions} in the "
                    f"first line"
                )
            self._known[word] = vector
        return self._known[word]


class ModelEmbeddings:
    """The input embeddings of a transformers model, one vector per token.

    Args:
        model_name: Folder or hub id.
    """

    def __init__(self, model_name: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        what, hint = "model for word vectors", "Pass the folder of a model, or a hub id if there is a network."
        self._tokenizer = load_pretrained(AutoTokenizer, model_name, what, hint)
        model = load_model(AutoModel, model_name, what, hint, new_head=True)
        self._vectors = model.get_input_embeddings().weight.detach().float().cpu().numpy()

    def __call__(self, text: str) -> np.ndarray:
        """Look up the vectors of a text's tokens. Shape (tokens, dimensions)."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        found: np.ndarray = self._vectors[np.array(ids, dtype=int)]
        return found
