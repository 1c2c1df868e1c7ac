"""Words per text."""

from __future__ import annotations

from rl4dialog.metrics.length import LengthMetric


def test_words_are_split_at_white_space() -> None:
    assert LengthMetric().compute(["", ""], ["a  b\nc.", ""], [[""], [""]]) == {"length/words": ([3.0, 0.0], 1.5)}
