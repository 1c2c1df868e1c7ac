"""chrF against the library and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from sacrebleu.metrics import CHRF

from rl4dialog.core.errors import ConfigError
from rl4dialog.metrics.chrf import ChrfMetric

TEXTS = ["Where do you live?", "naïve 😀"]
REFERENCES = [["Where did you live", "Where do they live?"], ["naive 😀"]]


@pytest.mark.parametrize("args", [{}, {"word_order": 2}, {"lowercase": True, "beta": 1, "whitespace": True}], ids=str)
def test_scores_are_those_of_the_library(args: dict[str, Any]) -> None:
    scores, corpus = ChrfMetric(**args).compute([""] * 2, TEXTS, REFERENCES)["lexical/chrf"]
    library = CHRF(**args)
    expected = [library.sentence_score(t, r).score / 100 for t, r in zip(TEXTS, REFERENCES, strict=True)]
    assert scores == pytest.approx(expected)
    streams = [[refs[i] if i < len(refs) else None for refs in REFERENCES] for i in range(2)]
    assert corpus == pytest.approx(library.corpus_score(TEXTS, streams).score / 100)


def test_score_is_f2_of_character_ngrams() -> None:
    # Of the characters 2 of 2 are found and 2 of 4, of the pairs 1 of 1 and 1 of 3.
    scores, _ = ChrfMetric(char_order=2).compute([""], ["ab"], [["abcd"]])["lexical/chrf"]
    precision, recall = (1 + 1) / 2, (2 / 4 + 1 / 3) / 2
    assert scores == pytest.approx([5 * precision * recall / (4 * precision + recall)])


def test_wrong_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'chrf' does not accept.*char_order"):
        ChrfMetric(char_order="six")  # type: ignore[arg-type]
