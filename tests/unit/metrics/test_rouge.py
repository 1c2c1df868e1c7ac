"""ROUGE against the library and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer

from rl4dialog.catalog import MetricRegistry
from rl4dialog.metrics import rouge
from rl4dialog.metrics.rouge import ROUGE_TYPES, RougeMetric
from rl4dialog.metrics.rouge_l_max import RougeLMaxMetric

TEXTS = ["the cat sat on the mat", "dogs\nwalk home"]
REFERENCES = [["a cat sits on a mat", "the cat sat"], ["the dog\nwalks home"]]


def test_scores_are_those_of_the_library() -> None:
    found = RougeMetric().compute(["", ""], TEXTS, REFERENCES)
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    for name in ROUGE_TYPES:
        expected = [scorer.score(refs[0], text)[name].fmeasure for text, refs in zip(TEXTS, REFERENCES, strict=True)]
        scores, corpus = found[f"lexical/rouge_{name}"]
        assert scores == pytest.approx(expected)
        assert corpus == pytest.approx(sum(expected) / 2)


def test_stems_are_compared_unless_told_otherwise() -> None:
    for stems, expected in ((True, 1.0), (False, 0.0)):
        found = RougeMetric(use_stemmer=stems).compute([""], ["cats walking"], [["cat walks"]])
        assert found["lexical/rouge_rouge1"] == ([expected], expected)


def test_best_reference_counts_if_all_are_used() -> None:
    scores, _ = RougeMetric(use_single_ref=False).compute([""], TEXTS[:1], REFERENCES[:1])["lexical/rouge_rouge1"]
    # The second reference: precision 3/6, recall 3/3.
    assert scores == pytest.approx([2 / 3])


@pytest.mark.parametrize("metric", [RougeMetric, RougeLMaxMetric])
def test_other_scripts_have_no_words_and_a_warning_names_a_metric_that_reads_them(
    caplog: pytest.LogCaptureFixture, metric: Any
) -> None:
    rouge._warn_once.cache_clear()
    metric().compute(["", ""], ["A 1", "..."], [["É a"], ["..."]])
    assert not caplog.records
    found = metric().compute(["", ""], ["テスト", "naïve"], [["テスト"], ["na ve"]])
    assert next(iter(found.values()))[0] == [0.0, 1.0]
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "use chrf, which" in caplog.text
    assert MetricRegistry.get("chrf").compute([""], ["テスト"], [["テスト"]])["lexical/chrf"][1] == pytest.approx(1)
