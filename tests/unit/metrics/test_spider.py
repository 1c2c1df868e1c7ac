"""SPIDEr is made of SPICE and CIDEr."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl4dialog.metrics.cider import CiderMetric
from rl4dialog.metrics.spice import SpiceMetric
from rl4dialog.metrics.spider import SpiderMetric

TEXTS, REFERENCES = ["a cat sat", "dogs run fast"], [["a cat sat down"], ["dogs run"]]


@pytest.mark.parametrize(("spice", "cider"), [(0.5, 0.5), (0.25, 2.0), (1.0, 0.0), (0.0, 1.0)])
def test_score_is_the_weighted_sum(spice_folder: Path, spice: float, cider: float) -> None:
    place = {"spice_path": str(spice_folder), "java": str(spice_folder / "java")}
    (spice_scores, _), (cider_scores, _) = (
        next(iter(metric.compute(["", ""], TEXTS, REFERENCES).values()))
        for metric in (SpiceMetric(**place), CiderMetric())
    )
    metric = SpiderMetric(spice, cider, **place)
    scores, corpus = metric.compute(["", ""], TEXTS, REFERENCES)["lexical/spider"]
    assert spice_scores is not None and cider_scores is not None and scores is not None
    assert scores == pytest.approx([spice * s + cider * c for s, c in zip(spice_scores, cider_scores, strict=True)])
    assert corpus == pytest.approx(sum(scores) / 2)


def test_weight_zero_needs_no_java() -> None:
    SpiderMetric(spice_coeff=0.0, java="no-such-program")
