"""The synthetic task of dates."""

from __future__ import annotations

from rl4dialog.metrics.dates import DatesMetric


def test_share_of_texts_with_a_date() -> None:
    texts = ["on 2024-12-31 at noon", "2024-1-31", "12-31-2024", "x1999-00-99y"]
    found = DatesMetric().compute([""] * 4, texts, [[]] * 4)
    assert found == {"synthetic/dates_in_text": ([1.0, 0.0, 0.0, 1.0], 0.5)}
