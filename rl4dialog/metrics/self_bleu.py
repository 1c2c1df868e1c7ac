"""Self-BLEU (Zhu et al. 2018, arXiv 1802.01886): how similar the generated texts are to each other."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.metrics.sentence_metric import SentenceMetric

_Gram = tuple[str, ...]


class SelfBleuMetric(SentenceMetric):
    """Mean BLEU of each text against all others as references, 0 to 1; 1 if all texts are identical.

    It is sacrebleu's smoothed sentence BLEU. Counts are shared between the comparisons, so the run time is linear
    instead of quadratic in the number of texts. A single text scores 0.

    Args:
        max_ngram_order: Longest n-gram.
        lowercase: Whether to ignore case.
    """

    needs_references = False

    def __init__(self, max_ngram_order: Count = 4, lowercase: bool = False) -> None:
        self._order, self._lowercase = max_ngram_order, lowercase

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        from sacrebleu.metrics import BLEU
        from sacrebleu.metrics.helpers import extract_all_word_ngrams
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        split = Tokenizer13a()
        texts = [split((text.lower() if self._lowercase else text).rstrip()) for text in generated_texts]
        counts, lengths = zip(*[extract_all_word_ngrams(text, 1, self._order) for text in texts], strict=True)
        most, by_length = _most_frequent(counts), sorted(lengths)
        scores = []
        for row, (grams, length) in enumerate(zip(counts, lengths, strict=True)):
            if len(texts) == 1:
                scores.append(0.0)
                break
            correct = [0] * self._order
            for gram, count in grams.items():
                highest, owner, second = most[gram]
                correct[len(gram) - 1] += min(count, second if owner == row else highest)
            total = [max(length - n, 0) for n in range(self._order)]
            score = BLEU.compute_bleu(
                correct,
                total,
                length,
                _closest_other(by_length, length),
                smooth_method="exp",
                effective_order=True,
                max_ngram_order=self._order,
            )
            scores.append(score.score / 100)
        return {"diversity_metrics/self_bleu": scores}


def _most_frequent(counts: Sequence[dict[_Gram, int]]) -> dict[_Gram, tuple[int, int, int]]:
    """For each n-gram, its highest count in a text, the row of that text, and the highest count in another text."""
    most: dict[_Gram, tuple[int, int, int]] = {}
    for row, grams in enumerate(counts):
        for gram, count in grams.items():
            highest, owner, second = most.get(gram, (0, -1, 0))
            most[gram] = (count, row, highest) if count > highest else (highest, owner, max(second, count))
    return most


def _closest_other(by_length: list[int], length: int) -> int:
    """The length closest to a text's own among the others; the shorter one in a tie."""
    at = bisect.bisect_left(by_length, length)
    around = by_length[max(at - 1, 0) : at] + by_length[at + 1 : at + 2]
    return min(around, key=lambda other: (abs(other - length), other))
