"""What all metrics have in common: they refuse what cannot be measured, and survive odd texts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.bleu import BleuMetric
from rl4dialog.metrics.diversity import DiversityMetric
from rl4dialog.metrics.increasing_numbers import IncreasingNumbersMetric
from rl4dialog.metrics.length import LengthMetric
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.metrics.rouge import RougeMetric
from rl4dialog.metrics.sacre_bleu import SacreBleuMetric

LEXICAL = [
    BleuMetric(),
    DiversityMetric(),
    IncreasingNumbersMetric(3),
    LengthMetric(),
    MeteorMetric(synonyms=False),
    RougeMetric(),
    SacreBleuMetric(),
]
COMPARING = [metric for metric in LEXICAL if isinstance(metric, (BleuMetric, MeteorMetric, RougeMetric))]


@pytest.mark.parametrize("metric", LEXICAL, ids=lambda metric: type(metric).__name__)
class TestEveryMetric:
    def test_no_texts_are_refused(self, metric: Any) -> None:
        with pytest.raises(ValueError, match="at least one text"):
            metric.compute([], [], [])

    def test_unequal_lengths_are_refused(self, metric: Any) -> None:
        with pytest.raises(ValueError, match="2 generated texts, but 1"):
            metric.compute(["p", "p"], ["a", "b"], [["a"]])

    def test_odd_texts_get_finite_scores(self, metric: Any) -> None:
        texts = ["", "word", "😀", "a longer text , with words .", "."]
        references = [["a"], ["word", "other"], ["😀"], ["a text", "with words", "third"], [""]]
        for scores, corpus in metric.compute([""] * 5, texts, references).values():
            assert abs(corpus) < 1e6
            assert scores is None or (len(scores) == 5 and all(0 <= score <= 7 for score in scores))

    def test_only_blank_text_gets_finite_scores(self, metric: Any) -> None:
        assert all(abs(corpus) < 1e6 for _, corpus in metric.compute([""], [""], [["a"]]).values())


@pytest.mark.parametrize("metric", COMPARING, ids=lambda metric: type(metric).__name__)
@pytest.mark.parametrize("references", [[], "text"], ids=["none", "bare string"])
def test_text_without_references_is_refused(metric: Any, references: Any) -> None:
    with pytest.raises(DataError, match="text 1 needs a list of at least one reference"):
        metric.compute(["p", "p"], ["a", "b"], [["a"], references])


def test_lexical_metrics_do_not_import_torch() -> None:
    code = (
        "import sys; from rl4dialog.metrics import bleu, diversity, length, meteor, rouge, sacre_bleu;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
