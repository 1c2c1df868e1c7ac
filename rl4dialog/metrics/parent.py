"""PARENT (Dhingra et al. 2019, arXiv 1906.01081): compares a text about a table with references and the table itself.

A word of the text is correct if it occurs in a reference or in the table; a word of a reference is required in the text
only if it also occurs in the table. This is the variant of ToTTo's evaluation: words entail each other if they are
equal, and precision and recall use different parts of the table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_MAX_ORDER = 4
_SMOOTHING = 1e-5


class ParentScore(NamedTuple):
    """Precision, recall and F-score, each between 0 and 1."""

    precision: float
    recall: float
    f_score: float


def parent_score(
    words: Sequence[str],
    references: Sequence[Sequence[str]],
    table: Sequence[Sequence[str]],
    highlighted: Sequence[Sequence[str]],
) -> ParentScore:
    """Compute PARENT against the reference with the best F-score.

    Args:
        words: Words of the text.
        references: Words of each reference.
        table: Words of each value in the table, used for precision.
        highlighted: Words of each highlighted value, used for recall.

    Returns:
        The scores.
    """
    vocabulary = {word for value in table for word in value}
    mentioned = _mention(highlighted, words)
    scores = []
    for reference in references:
        precision, reference_recall = _ngram_scores(words, reference, vocabulary)
        # The less of the table a reference mentions, the more its recall counts compared to the table's.
        table_weight = 1 - _mention(highlighted, reference)
        recall = reference_recall ** (1 - table_weight) * (mentioned or _SMOOTHING) ** table_weight
        scores.append(ParentScore(precision, recall, 2 * precision * recall / (precision + recall + 1e-8)))
    return max(scores, key=lambda score: score.f_score)


def _ngram_scores(words: Sequence[str], reference: Sequence[str], vocabulary: set[str]) -> tuple[float, float]:
    """Entailed precision and recall: geometric means over the orders of n-grams."""
    precisions, recalls = [], []
    for n in range(1, _MAX_ORDER + 1):
        counts, reference_counts = _ngrams(words, n), _ngrams(reference, n)
        precision = 0.0
        for gram, count in counts.items():
            in_reference = min(1.0, reference_counts[gram] / count)
            precision += count * (in_reference + (1 - in_reference) * _entailed(gram, vocabulary))
        precisions.append(precision / counts.total() if counts else 0.0)
        possible = {gram: count * _entailed(gram, vocabulary) for gram, count in reference_counts.items()}
        found = sum(weight * min(1.0, counts[g] / reference_counts[g]) for g, weight in possible.items())
        recalls.append(found / sum(possible.values()) if any(possible.values()) else 1.0)
    precision = _geometric_mean(precisions)
    return precision, _geometric_mean(recalls) or _SMOOTHING


def _geometric_mean(values: list[float]) -> float:
    """Geometric mean; 0 if no single word matches, with smoothing for longer n-grams without a match."""
    if values[0] == 0:
        return 0.0
    return math.exp(math.fsum(math.log(value or _SMOOTHING) for value in values) / len(values))


def _entailed(gram: tuple[str, ...], vocabulary: set[str]) -> float:
    return sum(word in vocabulary for word in gram) / len(gram)


def _mention(values: Sequence[Sequence[str]], words: Sequence[str]) -> float:
    """Mean share of each value's words that occur in the text in order; 1 without values."""
    if not values:
        return 1.0
    return sum(_longest_common_subsequence(value, words) / len(value) for value in values) / len(values)


def _longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
