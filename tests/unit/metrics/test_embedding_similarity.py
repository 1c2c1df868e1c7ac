"""The three similarities on vectors small enough to calculate by hand."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.metrics.embedding_similarity import (
    EmbeddingSimilarityMetric,
    average_similarity,
    extrema_similarity,
    greedy_similarity,
)

A, B = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [1.0, 1.0], [-4.0, 0.0]])


def test_average_is_cosine_of_means() -> None:
    # The means are (1/2, 1) and (0, 1/3).
    assert average_similarity(A, B) == pytest.approx(2 / sqrt(5))


def test_greedy_averages_the_nearest_in_both_directions() -> None:
    # From A: cosines 1 and 1/sqrt(2). From B: 1, 1/sqrt(2), and 0 (to the second; -1 to the first).
    assert greedy_similarity(A, B) == pytest.approx(((1 + sqrt(0.5)) / 2 + (1 + sqrt(0.5)) / 3) / 2)
    assert greedy_similarity(B, A) == pytest.approx(greedy_similarity(A, B))


def test_extrema_keep_the_sign_of_the_farthest_value() -> None:
    # (1, 2) and (-4, 1).
    assert extrema_similarity(A, B) == pytest.approx(-2 / sqrt(5 * 17))


def test_vectors_of_zeros_are_like_nothing() -> None:
    assert average_similarity(np.zeros((1, 2)), A) == extrema_similarity(np.zeros((1, 2)), A) == 0


def test_best_reference_counts_and_unknown_words_do_not(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("a 1 0\nb 0 2\nc 3 0\nd 1 1\ne -4 0\n")
    texts, references = ["a b", "a b unknown", "", "unknown"], [["e", "c d e"], ["a b"], ["a"], ["a"]]
    found = EmbeddingSimilarityMetric(str(tmp_path / "vectors.txt")).compute([""] * 4, texts, references)
    forms = {"average": average_similarity, "greedy": greedy_similarity, "extrema": extrema_similarity}
    for name, function in forms.items():
        scores, corpus = found[f"semantic/embedding_{name}"]
        expected = max(function(A, B), function(A, B[2:]))
        assert scores == pytest.approx([expected, 1.0, 0.0, 0.0])
        assert corpus == pytest.approx((expected + 1) / 4)


def test_embeddings_of_a_model_can_be_used(bert_folder: str) -> None:
    found = EmbeddingSimilarityMetric(model_name=bert_folder).compute([""], ["a cat"], [["a cat"]])
    assert [corpus for _, corpus in found.values()] == pytest.approx([1.0] * 3, abs=1e-6)


@pytest.mark.parametrize("args", [{}, {"path": "x", "model_name": "y"}], ids=str)
def test_exactly_one_source_must_be_given(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"either path: .*glove.* or model_name"):
        EmbeddingSimilarityMetric(**args)
