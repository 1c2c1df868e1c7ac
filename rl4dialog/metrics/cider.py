"""CIDEr (Vedantam et al. 2015, arXiv 1411.5726): agreement with the references in n-grams that are rare elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.text.words import split_words

_MAX_ORDER = 4
_LENGTH_SIGMA = 6.0
_Grams = dict[tuple[str, ...], float]


class CiderMetric(SentenceMetric):
    """CIDEr-D, 0 to 10: clipped cosine of tf-idf n-grams of order 1 to 4, with a penalty for length differences.

    This is the variant of COCO's evaluation and RL4LMs. Document frequencies are computed over the references of all
    samples scored together, so the score of a text depends on the others, and a single sample scores 0. Case is kept,
    as in RL4LMs. Unlike here, RL4LMs splits words with spaCy, and scores only the last of several samples with the same
    prompt.
    """

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        texts = [split_words(text) for text in generated_texts]
        references = [[split_words(reference) for reference in each] for each in reference_texts]
        return {"lexical/cider": cider_scores(texts, references)}


def cider_scores(texts: list[list[str]], references: list[list[list[str]]]) -> list[float]:
    """Compute CIDEr-D of tokenized texts.

    Args:
        texts: Words of each text.
        references: Words of each text's references.

    Returns:
        One score per text, 0 to 10.
    """
    counts = [[_ngrams(reference) for reference in each] for each in references]
    document_frequency = Counter(gram for each in counts for gram in set().union(*each))
    log_n = math.log(len(texts))
    idf = {gram: log_n - math.log(frequency) for gram, frequency in document_frequency.items()}

    def weigh(grams: Counter[tuple[str, ...]]) -> _Grams:
        return {gram: count * idf.get(gram, log_n) for gram, count in grams.items()}

    scores = []
    for words, their_references, their_counts in zip(texts, references, counts, strict=True):
        vector = weigh(_ngrams(words))
        total = sum(
            _similarity(vector, weigh(grams)) * math.exp(-((len(words) - len(other)) ** 2) / (2 * _LENGTH_SIGMA**2))
            for other, grams in zip(their_references, their_counts, strict=True)
        )
        scores.append(10 * total / len(their_references))
    return scores


def _ngrams(words: list[str]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for n in range(1, _MAX_ORDER + 1) for i in range(len(words) - n + 1))


def _similarity(text: _Grams, reference: _Grams) -> float:
    """Mean cosine over the orders; counts of an n-gram are clipped to those in the reference."""
    dots, text_squares, reference_squares = ([0.0] * (_MAX_ORDER + 1) for _ in range(3))
    for gram, weight in text.items():
        text_squares[len(gram)] += weight**2
        dots[len(gram)] += min(weight, reference.get(gram, 0.0)) * reference.get(gram, 0.0)
    for gram, weight in reference.items():
        reference_squares[len(gram)] += weight**2
    norms = [math.sqrt(a * b) for a, b in zip(text_squares, reference_squares, strict=True)]
    return sum(dot / norm for dot, norm in zip(dots, norms, strict=True) if norm) / _MAX_ORDER
