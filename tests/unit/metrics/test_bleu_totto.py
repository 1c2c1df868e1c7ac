"""BLEU over records in ToTTo's form."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import BLEU

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.bleu_totto import BleuTottoMetric

TEXTS = ["Ann and Bo know each other.", "The page names  Ann and Bo", ""]
REFERENCES = [["ann and Bo know each other well."], ["The page names Bo and Ann", "the Page names Ann"], ["Bo"]]


def test_scores_are_bleu_of_three_references_in_lower_case() -> None:
    infos = [{"raw_table": {"table": [], "highlighted_cells": [], "overlap_subset": o}} for o in (True, False, None)]
    found = BleuTottoMetric().compute([""] * 3, TEXTS, REFERENCES, infos)
    texts = ["ann and bo know each other.", "the page names ann and bo", "<null>"]
    null = "<null>"
    streams = [
        ["ann and bo know each other well.", "the page names bo and ann", "bo"],
        [null, "the page names ann", null],
        [null, null, null],
    ]
    for name, rows in {"overall": slice(3), "overlap": slice(1), "non_overlap": slice(1, 2)}.items():
        expected = BLEU().corpus_score(texts[rows], [stream[rows] for stream in streams]).score / 100
        assert 0 < expected < 1
        assert found[f"table_to_text/bleu_{name}"] == (None, pytest.approx(expected))


def test_missing_table_is_named() -> None:
    with pytest.raises(DataError, match=r"'bleu_totto' needs .*meta_data\['raw_table'\]"):
        BleuTottoMetric().compute([""], ["a"], [["a"]], [{}])
