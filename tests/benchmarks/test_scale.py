"""Predictions of large runs."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.scale import METHODS, MODELS, Work, measured_rows, memory, predicted_rows, rollout_s

DOCS = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")


def test_what_was_measured_is_predicted():
    for what, measured, predicted in measured_rows():
        low, high = float(measured.split(" ")[0]), float(measured.split(" ")[-1])
        assert 0.75 * low <= float(predicted) <= 1.3 * high, what


def test_docs_show_what_is_predicted():
    rows = [f"| {' | '.join(cells)} |" for cells in predicted_rows()]
    shown = [line for line in DOCS.splitlines() if line.startswith(tuple(f"| {model.name} |" for model in MODELS))]
    assert len(shown) >= 9 and set(shown) <= set(rows)


@pytest.mark.parametrize("method", METHODS)
def test_larger_models_need_more_time_and_memory(method):
    for smaller, larger in pairwise(MODELS):
        for quantity in (memory, rollout_s):
            assert quantity(smaller, method, 8, Work()) < quantity(larger, method, 8, Work())
