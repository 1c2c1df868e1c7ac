"""Embedding similarity in three variants common in dialogue research (Liu et al. 2016, arXiv 1603.08023)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.metrics.text_embedders import cosines
from rl4dialog.metrics.word_vectors import ModelEmbeddings, TextVectors, VectorFile


class EmbeddingSimilarityMetric(SentenceMetric):
    """Cosine similarity of word vectors to the best reference: ``average``, ``greedy`` and ``extrema``.

    A text without any known word scores 0.

    Args:
        path: Text file of word vectors (GloVe, word2vec).
        model_name: Folder or hub id of a model whose input embeddings are used instead.

    Raises:
        ConfigError: If not exactly one of path and model_name is given.
        DataError: If the file cannot be read.
        ModelError: If the model cannot be loaded.
    """

    def __init__(self, path: str | None = None, model_name: str | None = None) -> None:
        if (path is None) == (model_name is None):
            raise ConfigError(
                "metric 'embedding_similarity' needs either path: <text file of word vectors, such as GloVe's from "
                "https://nlp.stanford.edu/projects/glove> or model_name: <folder or hub id of a model>"
            )
        self._vectors: TextVectors = VectorFile(path) if path is not None else ModelEmbeddings(str(model_name))

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        forms = {"average": average_similarity, "greedy": greedy_similarity, "extrema": extrema_similarity}
        scores: dict[str, list[float]] = {f"semantic/embedding_{name}": [] for name in forms}
        for text, references in zip(generated_texts, reference_texts, strict=True):
            vectors, others = self._vectors(text), [self._vectors(reference) for reference in references]
            for similarity, each in zip(forms.values(), scores.values(), strict=True):
                each.append(max(similarity(vectors, o) if len(vectors) and len(o) else 0.0 for o in others))
        return scores


def average_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the mean vectors (Foltz et al. 1998). Shapes (words, dimensions)."""
    return float(cosines(a.mean(0, keepdims=True), b.mean(0, keepdims=True))[0, 0])


def greedy_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Mean cosine of each word to its nearest neighbor in the other text, in both directions (Rus and Lintean 2012)."""
    similarities = cosines(a, b)
    return float((similarities.max(1).mean() + similarities.max(0).mean()) / 2)


def extrema_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the vectors with each dimension's value farthest from 0 (Forgues et al. 2014)."""
    return float(cosines(_extrema(a)[None], _extrema(b)[None])[0, 0])


def _extrema(vectors: np.ndarray) -> np.ndarray:
    return np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)[0]
