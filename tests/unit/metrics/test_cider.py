"""CIDEr against numbers of COCO's implementation (pycocoevalcap 1.2)."""

from __future__ import annotations

import pytest

from rl4dialog.metrics.cider import CiderMetric, cider_scores

TEXTS = ["a cat sat on the mat", "two dogs run home fast", "", "the the the cat"]
REFERENCES = [
    ["the cat sat on a mat", "a cat is on the mat"],
    ["two dogs run home", "dogs run fast"],
    ["x"],
    ["the cat"],
]


def test_scores_are_those_of_the_reference_implementation() -> None:
    words = [[reference.split() for reference in references] for references in REFERENCES]
    expected = [4.139548366768863, 5.382429484908878, 0.0, 1.6311870158434134]
    assert cider_scores([text.split() for text in TEXTS], words) == pytest.approx(expected, abs=1e-9)
    scores, corpus = CiderMetric().compute(["same prompt"] * 4, TEXTS, REFERENCES)["lexical/cider"]
    assert scores == pytest.approx(expected, abs=1e-9)
    assert corpus == pytest.approx(sum(expected) / 4)


def test_identical_text_scores_10_and_one_alone_0() -> None:
    references = [["an old cat sat down"], ["my dogs run home"]]
    metric = CiderMetric()
    scores, _ = metric.compute(["", ""], [references[0][0], "no"], references)["lexical/cider"]
    assert scores == pytest.approx([10.0, 0.0])
    assert metric.compute([""], references[0], references[:1])["lexical/cider"] == ([0.0], 0.0)
