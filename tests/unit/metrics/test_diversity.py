"""Diversity of a corpus small enough to count by hand."""

from __future__ import annotations

import math

import pytest

from rl4dialog.metrics.diversity import DiversityMetric

# Words: a b a . | A c
TEXTS = ["a b a .", "A c"]


def measure(texts: list[str], window_size: int = 100) -> dict[str, float]:
    found = DiversityMetric(window_size).compute([""] * len(texts), texts, [[""]] * len(texts))
    assert all(scores is None for key, (scores, _) in found.items() if key != "diversity_metrics/seq-rep-4")
    return {key.removeprefix("diversity_metrics/"): corpus for key, (_, corpus) in found.items()}


def test_keys_are_those_of_rl4lms_and_repetition() -> None:
    plain = {"total_length", "mean_pred_length", "std_pred_length", "median_pred_length"}
    plain |= {"min_pred_length", "max_pred_length", "cond_entropy-2", "cond_entropy-3"}
    plain |= {f"{name}-{n}" for name in ("distinct", "vocab_size", "unique", "entropy") for n in (1, 2, 3)}
    others = {"msttr-100", "msttr-100_nopunct", "seq-rep-4"}
    assert set(measure(TEXTS)) == plain | {f"{key}-nopunct" for key in plain} | others


def test_lengths_are_counted_with_and_without_punctuation() -> None:
    found = measure(TEXTS)
    assert [found[f"{name}_pred_length"] for name in ("mean", "std", "median", "min", "max")] == [3, 1, 3, 2, 4]
    assert (found["total_length"], found["total_length-nopunct"], found["mean_pred_length-nopunct"]) == (6, 5, 2.5)


def test_ngrams_are_counted_within_texts() -> None:
    found = measure(TEXTS)
    assert [found[f"vocab_size-{n}"] for n in (1, 2, 3)] == [4, 4, 2]
    assert [found[f"unique-{n}"] for n in (1, 2, 3)] == [3, 4, 2]
    assert [found[f"distinct-{n}"] for n in (1, 2, 3)] == pytest.approx([4 / 6, 1, 1])
    assert [found[f"vocab_size-{n}-nopunct"] for n in (1, 2, 3)] == [3, 3, 1]


def test_entropies_are_in_bits() -> None:
    found = measure(TEXTS)
    assert found["entropy-1"] == pytest.approx(0.5 + 0.5 * math.log2(6))
    assert found["entropy-2"] == pytest.approx(2)
    # p(ab) = p(ac) = p(ba) = p(a.) = 1/4; p(a) = 1/2 for three of them and p(b) = 1/6.
    assert found["cond_entropy-2"] == pytest.approx(-(3 * math.log2(1 / 2) + math.log2(6 / 4)) / 4)


def test_msttr_averages_whole_windows() -> None:
    assert measure(["a a b", "c d"], window_size=2)["msttr-2"] == pytest.approx((1 / 2 + 1) / 2)
    assert measure(["a a b", "c d"])["msttr-100"] == pytest.approx(4 / 5)


def test_words_are_split_as_in_the_reference_implementation() -> None:
    # Gehrmann et al. (GEM) count the tokens of nltk.word_tokenize: is, n't, it, ?, no, .
    assert measure(["Isn't it? No."])["total_length"] == 6


def test_repetition_is_share_of_4grams_written_before() -> None:
    texts = ["a b c d a b c d", "a b c", ""]
    scores, corpus = DiversityMetric().compute([""] * 3, texts, [[""]] * 3)["diversity_metrics/seq-rep-4"]
    assert scores == pytest.approx([1 / 5, 0, 0])
    assert corpus == pytest.approx(1 / 15)
