"""What all metrics have in common: they refuse what cannot be measured."""

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.scores.diversity import DiversityMetric
from rl4dialog.scores.meteor import MeteorMetric
from rl4dialog.scores.overlap import BleuMetric, ChrfMetric, RougeMetric, SacreBleuMetric, TerMetric
from rl4dialog.scores.rules import LengthMetric

COMPARING = [
    *(BleuMetric(), ChrfMetric(), MeteorMetric(synonyms=False), RougeMetric(), RougeMetric(use_single_ref=False)),
    *(SacreBleuMetric(), TerMetric()),
]


@pytest.mark.parametrize("metric", [BleuMetric(), LengthMetric(), DiversityMetric()])
def test_no_texts_and_unequal_lengths_are_refused(metric):
    with pytest.raises(ValueError, match="at least one text"):
        metric.compute([], [], [])
    with pytest.raises(ValueError, match="2 generated texts, but another input has length 1"):
        metric.compute(["p", "p"], ["a", "b"], [["a"]])


@pytest.mark.parametrize("metric", COMPARING, ids=lambda metric: type(metric).__name__)
def test_text_without_references_is_refused(metric):
    for references in ([], "text"):
        with pytest.raises(DataError, match="text 1 needs a list of at least one reference"):
            metric.compute(["p", "p"], ["a", "b"], [["a"], references])


# Of a text that equals its reference: a sentence, a word, an emoji, Japanese, nothing.
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (BleuMetric(), [1, 0, 0, 0, 0]),
        (SacreBleuMetric(), [1, 0, 0, 0, 0]),
        (ChrfMetric(), [1, 1, 1, 1, 0]),
        (TerMetric(), [0, 0, 0, 0, 0]),
        (MeteorMetric(synonyms=False), [1 - 0.5 / 6**3, 0.5, 0.5, 0.5, 0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_that_equals_its_reference(metric, expected):
    for text, score in zip(["a cat sat on the mat", "word", "😀", "テスト", ""], expected, strict=True):
        ((_, corpus),) = metric.compute([""], [text], [[text]]).values()
        assert corpus == pytest.approx(score)
