"""ROUGE-L of the best reference, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.metrics.rouge_l_max import RougeLMaxMetric


def score(text: str, references: list[str], **args: Any) -> float:
    scores, corpus = RougeLMaxMetric(**args).compute([""], [text], [references])["lexical/rouge_l_max"]
    assert scores == [corpus]
    return corpus


def test_best_reference_counts() -> None:
    # The common subsequence "the cat sat" has 3 of 4 and 3 of 6 words.
    assert score("the cat sat down", ["a dog", "the black cat sat right there"]) == pytest.approx(2 * 0.75 * 0.5 / 1.25)


def test_stems_are_compared_unless_told_otherwise() -> None:
    assert score("cats walking", ["cat walks"]) == 1.0
    assert score("cats walking", ["cat walks"], stemming=False) == 0.0


def test_alpha_weighs_precision() -> None:
    assert score("a b c d", ["a b"], alpha=1.0) == pytest.approx(0.5)
    assert score("a b c d", ["a b"], alpha=0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("args", [{"length_limit": 2, "length_limit_type": "words"}, {"length_limit": 3}], ids=str)
def test_limit_cuts_text_and_references(args: dict[str, Any]) -> None:
    assert score("a b c d", ["a b x y z"], **args) == 1.0
    assert score("a b c d", ["a b x y z"], **args, limit_length=False) < 0.5


def test_arguments_of_published_configs_are_accepted() -> None:
    args = {"max_n": 4, "limit_length": True, "length_limit": 100, "length_limit_type": "words", "apply_avg": True}
    assert score("a b", ["a b"], **args, apply_best=True, alpha=0.5, weight_factor=1.2, stemming=True) == 1.0
