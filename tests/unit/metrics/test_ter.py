"""Translation edit rate against the library and by hand."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import TER

from rl4dialog.metrics.ter import TerMetric

TEXTS = ["the cat sat on the mat", "a long and entirely wrong text", "Home"]
REFERENCES = [["on the mat the cat sat", "a cat sat"], ["word"], ["home"]]


def test_scores_are_edits_per_reference_word() -> None:
    scores, corpus = TerMetric().compute([""] * 3, TEXTS, REFERENCES)["lexical/ter"]
    # One phrase is moved, over 4.5 words of a reference on average; one word is replaced and five are deleted.
    assert scores == pytest.approx([1 / 4.5, 6.0, 0.0])
    streams = [[refs[i] if i < len(refs) else None for refs in REFERENCES] for i in range(2)]
    assert corpus == pytest.approx(TER().corpus_score(TEXTS, streams).score / 100)


def test_arguments_are_passed_on() -> None:
    scores, _ = TerMetric(case_sensitive=True).compute([""] * 3, TEXTS, REFERENCES)["lexical/ter"]
    assert scores is not None and scores[2] == 1.0
    scores, _ = TerMetric(normalized=True, no_punct=True).compute([""], ["yes , sir ."], [["yes sir"]])["lexical/ter"]
    assert scores == [0.0]
