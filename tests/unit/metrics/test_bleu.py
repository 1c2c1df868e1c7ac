"""BLEU over white space against nltk's."""

from __future__ import annotations

import pytest
from nltk.translate.bleu_score import corpus_bleu

from rl4dialog.metrics.bleu import BleuMetric

TEXTS = ["the cat sat on the mat today .", "a dog ran to the red house"]
REFERENCES = [["the cat sat on the mat .", "a cat sat on the mat today"], ["a dog ran to a house"]]


def test_corpus_score_is_unsmoothed_bleu_of_whitespace_words() -> None:
    _, corpus = BleuMetric().compute(["", ""], TEXTS, REFERENCES)["lexical/bleu"]
    words = [[reference.split() for reference in references] for references in REFERENCES]
    assert 0 < corpus < 1
    assert corpus == pytest.approx(corpus_bleu(words, [text.split() for text in TEXTS]))


def test_corpus_without_common_4gram_scores_0_but_its_sentences_do_not() -> None:
    scores, corpus = BleuMetric().compute([""], ["a b c x e f"], [["a b c d e f"]])["lexical/bleu"]
    assert corpus == 0
    assert scores is not None and scores[0] > 0


def test_punctuation_is_not_split_off() -> None:
    scores, _ = BleuMetric().compute([""], ["yes."], [["yes ."]])["lexical/bleu"]
    assert scores == [0.0]
