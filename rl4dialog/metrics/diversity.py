"""Diversity of a corpus of texts; keys and definitions follow the GEM benchmark's metrics, as logged by RL4LMs."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Sequence
from statistics import mean, median, pstdev
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths
from rl4dialog.text.words import split_words


class DiversityMetric(BaseMetric):
    """Lengths in words, type-token ratios, and distinct, unique and entropy (bits) of n-grams of order 1 to 3.

    ``distinct-1`` is the type-token ratio; because it decreases with the number of words, ``msttr`` is its mean over
    windows of a fixed length. Every key also exists without punctuation (``-nopunct``, ``_nopunct``); GEM keeps
    punctuation marks of several characters there, such as "...". ``seq-rep-4`` is not from GEM: it is the share of a
    text's 4-grams that repeat earlier ones (Welleck et al. 2020, arXiv 1908.04319), and the only key with a score per
    text.

    Args:
        window_size: Words per window of the mean segmental type-token ratio.
    """

    def __init__(self, window_size: Count = 100) -> None:
        self._window_size = window_size

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        words = [lowercase_words(text) for text in generated_texts]
        bare = [[word for word in text if not set(word) <= set(string.punctuation)] for text in words]
        found = {**self._measure(words, "-", ""), **self._measure(bare, "_", "nopunct")}
        result: MetricResult = {f"diversity_metrics/{key}": (None, value) for key, value in found.items()}
        repeated = [repetition(text) for text in words]
        return {**result, "diversity_metrics/seq-rep-4": (repeated, mean(repeated))}

    def _measure(self, texts: list[list[str]], joint: str, variant: str) -> dict[str, float]:
        lengths = [len(text) for text in texts]
        found = {
            f"msttr-{self._window_size}{joint + variant if variant else ''}": self._segmental_ttr(texts),
            f"total_length{'-' + variant if variant else ''}": float(sum(lengths)),
            f"mean_pred_length{'-' + variant if variant else ''}": float(mean(lengths)),
            f"std_pred_length{'-' + variant if variant else ''}": pstdev(lengths),
            f"median_pred_length{'-' + variant if variant else ''}": float(median(lengths)),
            f"min_pred_length{'-' + variant if variant else ''}": float(min(lengths)),
            f"max_pred_length{'-' + variant if variant else ''}": float(max(lengths)),
        }
        suffix = f"-{variant}" if variant else ""
        shorter: Counter[tuple[str, ...]] = Counter()
        for n in (1, 2, 3):
            counts = ngrams(texts, n)
            total = sum(counts.values())
            found[f"distinct-{n}{suffix}"] = len(counts) / total if total else 0.0
            found[f"vocab_size-{n}{suffix}"] = float(len(counts))
            found[f"unique-{n}{suffix}"] = float(sum(count == 1 for count in counts.values()))
            found[f"entropy-{n}{suffix}"] = _entropy(counts)
            if n > 1:
                found[f"cond_entropy-{n}{suffix}"] = _conditional_entropy(counts, shorter)
            shorter = counts
        return found

    def _segmental_ttr(self, texts: list[list[str]]) -> float:
        """Mean type-token ratio of complete windows; of all words if there is no complete window."""
        words = [word for text in texts for word in text]
        size = self._window_size
        windows = [words[i : i + size] for i in range(0, len(words) - size + 1, size)] or [words]
        return float(mean(len(set(window)) / len(window) if window else 0.0 for window in windows))


def lowercase_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case."""
    return [word.lower() for word in split_words(text)]


def repetition(words: Sequence[str], n: int = 4) -> float:
    """Share of n-grams that occur earlier in the text; 0 if there are none."""
    counts = ngrams([words], n)
    return 1 - len(counts) / counts.total() if counts else 0.0


def ngrams(texts: Sequence[Sequence[str]], n: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams within texts that are split into words."""
    return Counter(tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1))


def _entropy(counts: Counter[tuple[str, ...]]) -> float:
    total = sum(counts.values())
    return -sum(c / total * math.log2(c / total) for c in counts.values()) + 0.0 if total else 0.0


def _conditional_entropy(counts: Counter[tuple[str, ...]], shorter: Counter[tuple[str, ...]]) -> float:
    """Entropy of an n-gram's last word given the words before it.

    As in the GEM metrics, p(last | before) is p(n-gram) / p(before), each relative to the n-grams of its own order. In
    short texts the quotient can exceed 1, and the entropy can be negative.
    """
    total, total_shorter = sum(counts.values()), sum(shorter.values())
    if not total:
        return 0.0
    return 0.0 - sum(
        c / total * math.log2((c / total) / (shorter[gram[:-1]] / total_shorter)) for gram, c in counts.items()
    )
