"""PARENT on tables small enough to calculate by hand."""

from __future__ import annotations

import pytest

from rl4dialog.metrics.parent import parent_score

TINY = 1e-5


def test_word_of_the_table_is_right_and_word_of_neither_is_not() -> None:
    found = parent_score(["x", "y"], [["x", "z"]], table=[["y"]], highlighted=[["y"]])
    # x is in the reference, y in the table; of the pair the table has half; there are no longer n-grams.
    assert found.precision == pytest.approx((1 * 0.5 * TINY * TINY) ** 0.25)
    # No word of the reference is in the table, so nothing of it need be found, and the table alone counts.
    assert found.recall == pytest.approx(1.0)
    assert found.f_score == pytest.approx(2 * found.precision / (found.precision + 1), rel=1e-3)


TABLE, HIGHLIGHTED = [["a", "b"], ["q"]], [["b", "q"], ["a"]]


def test_ngram_counts_as_far_as_reference_or_table_have_it() -> None:
    found = parent_score(["a", "b", "c", "d", "e"], [["a", "b", "q", "d", "e"]], TABLE, HIGHLIGHTED)
    # Of the words all but c; of the pairs a b and d e, and half of b c; then a b c (2/3) and b c d (1/3), and so on.
    assert found.precision == pytest.approx((4 / 5 * 2.5 / 4 * 1 / 3 * 0.75 / 2) ** 0.25)
    # The table has a, b and q, of which two are found; of its pairs a b (1), b q (1) and q d (1/2) only a b.
    # The reference mentions b q and a in full, so that the table's own recall has no weight.
    assert found.recall == pytest.approx((2 / 3 * 1 / 2.5 * TINY * TINY) ** 0.25)


def test_table_counts_as_far_as_the_reference_is_silent_about_it() -> None:
    found = parent_score(["a", "b", "c", "d", "e"], [["a", "z", "z", "d", "e"]], TABLE, HIGHLIGHTED)
    # Of the reference's words the table has a, which is found, but no longer n-gram with a is.
    reference_recall = (1 * TINY**3) ** 0.25
    # The text mentions half of b q, and a. The reference mentions a: half of the weight goes to the table.
    assert found.recall == pytest.approx(reference_recall**0.5 * 0.75**0.5)


def test_text_without_a_right_word_scores_0() -> None:
    assert parent_score(["n"], [["a"]], [["a"]], [["a"]]) == pytest.approx((0, TINY, 0), abs=1e-4)
    assert parent_score([], [["a"]], [["a"]], [["a"]])[::2] == (0, 0)


def test_perfect_text_scores_1_against_its_best_reference() -> None:
    words = ["the", "cat", "sat", "down", "here"]
    found = parent_score(words, [["no"], words], [words], [["cat", "sat"]])
    assert found == pytest.approx((1, 1, 1), abs=1e-6)


def test_table_without_values_leaves_the_references() -> None:
    words = ["the", "cat", "sat", "down"]
    assert parent_score(words, [words], [], []) == pytest.approx((1, 1, 1), abs=1e-6)
