"""sacrebleu's scores, passed through."""

from __future__ import annotations

from typing import Any

import pytest
from sacrebleu.metrics import BLEU

from rl4dialog.core.errors import ConfigError
from rl4dialog.metrics.sacre_bleu import SacreBleuMetric

TEXTS = ["The cat sat on the mat.", "A dog ran home"]
REFERENCES = [["the cat sat on a mat.", "The cat sat."], ["A dog ran to its home"]]
STREAMS = [["the cat sat on a mat.", "A dog ran to its home"], ["The cat sat.", None]]


@pytest.mark.parametrize("args", [{}, {"lowercase": True}, {"tokenize": "char", "max_ngram_order": 2}], ids=str)
def test_scores_are_those_of_the_library(args: dict[str, Any]) -> None:
    scores, corpus = SacreBleuMetric(**args).compute(["", ""], TEXTS, REFERENCES)["lexical/sacrebleu"]
    assert corpus == pytest.approx(BLEU(**args).corpus_score(TEXTS, STREAMS).score / 100)
    sentence = BLEU(**args, effective_order=True)
    expected = [sentence.sentence_score(t, r).score / 100 for t, r in zip(TEXTS, REFERENCES, strict=True)]
    assert scores == pytest.approx(expected)


@pytest.mark.parametrize("args", [{"tokenize": "bogus"}, {"smooth_method": "bogus"}, {"max_ngram_order": "x"}], ids=str)
def test_wrong_argument_is_refused_at_once(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'sacre_bleu' does not accept.*" + next(iter(args))):
        SacreBleuMetric(**args)
