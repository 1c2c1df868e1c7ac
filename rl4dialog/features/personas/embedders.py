"""Texts as vectors, whose cosine says how similar they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.scores.diversity import lowercase_words
from rl4dialog.scores.language_models import FrozenLanguageModel
from rl4dialog.text.prompts import encoder_of

_MAX_KNOWN = 4096  # texts


class TextEmbedder(ABC):
    """Computes the vector of a text once, and remembers it."""

    def __init__(self) -> None:
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts. Shape (texts, dimensions), for at least one text."""
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            self._known.update(zip(new, self._embed(new), strict=True))
        return np.array([self._known[text] for text in texts])

    @abstractmethod
    def _embed(self, texts: Sequence[str]) -> Iterable[np.ndarray]:
        """Return one vector per text."""


class TfidfEmbedder(TextEmbedder):
    """Words weighted by tf-idf, without a model; other words than those of the corpus are ignored.

    A word that occurs n times in the text and in df of N texts of the corpus has the weight n (1 + ln((1 + N) / (1 +
    df))), as in scikit-learn. Vectors have length 1, or 0 without a known word.
    """

    def __init__(self, corpus: Sequence[str]) -> None:
        super().__init__()
        # In order of appearance: that of a set differs between processes.
        counts = Counter(word for text in corpus for word in dict.fromkeys(_words(text)))
        self._columns = {word: i for i, word in enumerate(counts)}
        self._idf = np.array([1 + math.log((1 + len(corpus)) / (1 + df)) for df in counts.values()])

    def _embed(self, texts: Sequence[str]) -> Iterable[np.ndarray]:
        for text in texts:
            vector = np.zeros(len(self._idf))
            for word in _words(text):
                if word in self._columns:
                    vector[self._columns[word]] += 1
            vector *= self._idf
            yield vector / (np.linalg.norm(vector) or 1)


class HiddenMeanEmbedder(TextEmbedder):
    """Mean hidden state of a text in a language model; the zero vector for an empty text.

    ``layer`` is the index among the hidden states: 0 for the embeddings, -1 for the last layer.
    """

    def __init__(self, model: FrozenLanguageModel, layer: int, who: str) -> None:
        super().__init__()
        n_states = model.config.num_hidden_layers + 1
        if not -n_states <= layer < n_states:
            raise ConfigError(f"{who}: layer must be from {-n_states} to {n_states - 1}, not {layer}")
        self._model, self._layer = model, layer

    def _embed(self, texts: Sequence[str]) -> Iterable[np.ndarray]:
        encoder = encoder_of(self._model.tokenizer)
        rows = [encoder.ids(text)[-self._model.max_length :] for text in texts]
        states = iter(self._model.mean_states([row for row in rows if row], self._layer))
        return [next(states) if row else np.zeros(self._model.config.hidden_size) for row in rows]


def _words(text: str) -> list[str]:
    return [word for word in lowercase_words(text) if any(map(str.isalnum, word))]
