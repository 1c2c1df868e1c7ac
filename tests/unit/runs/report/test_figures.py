"""Pictures as parts of a page."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rl4dialog.runs.report.curves import Curve
from rl4dialog.runs.report.figures import (
    COLORS,
    _new_canvas,
    _short,
    _thinned,
    band_chart,
    histogram,
    line_chart,
    stacked_chart,
)


def test_picture_is_one_element_in_the_colours_of_the_page() -> None:
    svg = line_chart("A & B", [Curve("a", [1, 2, 3], [0.1, math.nan, 0.3])], target=0.2)
    root = ElementTree.fromstring(str(svg))
    assert root.attrib["aria-label"] == "A & B" and "width" not in root.attrib and "viewBox" in root.attrib
    assert "currentColor" in svg and COLORS[0] in svg and "<metadata>" not in svg
    assert "stroke-dasharray" in svg, "the target"


def test_ids_of_two_pictures_differ() -> None:
    curve = Curve("a", [1, 2], [1, 2])
    pictures = [ElementTree.fromstring(str(line_chart(title, [curve]))) for title in ("first", "second")]
    ids = [{e.attrib["id"] for e in picture.iter() if "clipPath" in e.tag} for picture in pictures]
    assert ids[0] and not ids[0] & ids[1]


def test_long_run_makes_no_large_picture() -> None:
    x = list(range(100_000))
    assert len(line_chart("a", [Curve("a", x, np.random.default_rng(0).normal(size=len(x)).tolist())])) < 60_000
    assert _thinned([float(i) for i in range(800)])[:2] == [0.5, 2.5]


@pytest.mark.parametrize("values", [[], [math.nan], [1.0], [0.1, 0.2, 5.0]])
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    x = list(range(len(values)))
    for svg in (
        histogram("a", {"before": np.array(values), "after": np.array(values)}),
        line_chart("b", [Curve("b", x, values, values, values)], smoothed=False),
        band_chart("c", [Curve("c", x, values, values, values)]),
        stacked_chart("d", x, [values, values]),
    ):
        assert ElementTree.fromstring(str(svg)).tag.endswith("svg")


def test_picture_does_not_depend_on_those_before_it() -> None:
    _new_canvas.cache_clear()
    curve = Curve("a", [1, 2, 3], [1e-5, 3e-5, 2e-5], [0.0] * 3, [4e-5] * 3)
    x, samples = [1, 2, 3], {"a": np.array([100.0, 200.5, 300.0])}
    charts = {
        "line": lambda: line_chart("a", [curve], target=5e-5),
        "points": lambda: line_chart("a", [curve], smoothed=False),
        "band": lambda: band_chart("a", [curve]),
        "stack": lambda: stacked_chart("a", x, [[1e3, 2e3, 3e3]] * 2),
        "histogram": lambda: histogram("a", samples),
        "nothing": lambda: line_chart("a", []),
    }
    first = {name: chart() for name, chart in charts.items()}
    for name in reversed(charts):
        assert charts[name]() == first[name], name


def test_numbers_below_an_axis_are_short() -> None:
    numbers = (0.0, 0.5, -3.0, 20_000.0, 1.5e6, 2e9)
    assert [_short(value) for value in numbers] == ["0", "0.5", "-3", "20k", "1.5M", "2G"]
