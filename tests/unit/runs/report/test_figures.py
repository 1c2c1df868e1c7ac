"""Plots as parts of a page."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rl4dialog.runs.report.curves import Curve
from rl4dialog.runs.report.figures import band_chart, histogram, line_chart, stacked_chart, y_range

X = {"iterations": [1.0, 2.0, 3.0], "agent tokens": [100.0, 300.0, 400.0]}


def plots(chart):
    """Data of the curves, and the plot of each axis."""
    root = ElementTree.fromstring(chart)
    return json.loads(root.attrib["data-series"]), list(root)


def test_each_axis_has_its_plot_of_which_the_first_is_shown():
    series, (first, second) = plots(line_chart("A & B", "nats <b>", [Curve("a", X, [0.1, math.nan, 0.3])], target=0.2))
    assert series == [{"label": "a", "y": [0.1, None, 0.3]}]
    assert "hidden" not in first.attrib and "hidden" in second.attrib
    assert [plot.attrib["data-axis"] for plot in (first, second)] == ["iterations", "agent tokens"]
    data = json.loads(second.attrib["data-plot"])
    assert data["at"] == [[100, 300, 400]] and data["range"] == [100, 400]
    svg = first[0]
    assert svg.attrib["aria-label"] == "A & B; a from 0.1 to 0.3" and "viewBox" in svg.attrib
    texts = [element.text for element in svg if element.tag == "text"]
    assert "nats <b>" in texts and "iterations" in texts and "0.2" in texts and "2" in texts
    assert [element.attrib.get("class") for element in svg].count("target") == 1


def lines_of(chart, kind):
    return re.findall(rf'class="c0 {kind}" d="([^"]*)"', chart)


def test_missing_values_are_gaps():
    x = {"iterations": [1.0, 2.0, 3.0, 4.0]}
    (line,) = lines_of(line_chart("a", "", [Curve("a", x, [1.0, math.nan, 2.0, 3.0])]), "line")
    assert [part.count("L") for part in line.split("M")[1:]] == [0, 1]


def test_long_runs_have_thin_raw_values_and_a_bold_average():
    x = [float(i) for i in range(30)]
    chart = line_chart("a", "", [Curve("a", {"iterations": x}, [0.0, 1.0] * 15)])
    lines = [lines_of(chart, kind)[0] for kind in ("raw", "line")]
    raw, average = ({part.split()[1] for part in re.split("[ML]", line) if part} for line in lines)
    assert len(raw) == 2 and len(average) > 1 and not raw & average


def test_long_run_makes_no_large_plot():
    x = [float(i) for i in range(100_000)]
    chart = line_chart("a", "", [Curve("a", {"iterations": x}, np.random.default_rng(0).normal(size=len(x)).tolist())])
    assert len(chart) < 20_000
    (series,), _ = plots(chart)
    assert len(series["y"]) == 200


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([], 0.0, 1.0),
        ([0.0, 0.0], 0.0, 1.0),
        ([0.5, 1.0], 0.0, 1.05),
        ([-2.0, -1.0], -2.1, 0.0),
        ([-1.0, 1.0], -1.1, 1.1),
        ([0.7, 1.0], 0.685, 1.015),  # cut
        ([1.0, 1.0], 0.9, 1.1),
        ([0.999, 1.001], 0.9, 1.1),  # noise is not blown up
        ([-1.0, -1.0], -1.1, -0.9),
    ],
)
def test_vertical_axis_starts_at_zero_or_is_cut_without_blowing_up_noise(values, low, high):
    assert y_range(values) == pytest.approx((low, high), rel=2e-3)


def test_cut_axis_says_so():
    x = {"iterations": [1.0, 2.0]}
    whole, cut = (line_chart("a", "nats", [Curve("a", x, y)]) for y in ([0.1, 1.0], [0.9, 1.0]))
    assert "nats (cut axis)" in cut and "l-4 -2l8 -4l-4 -2" in cut
    assert "cut axis" not in whole and "l-4 -2" not in whole and 'class="zero"' in whole


def test_intervals_of_points_are_drawn_and_told():
    curve = Curve("a", X, [0.2, 0.3, 0.4], [0.1, 0.2, 0.3], [0.3, 0.4, 0.5])
    chart = line_chart("a", "", [curve], smoothed=False)
    (series,), _ = plots(chart)
    assert series["low"] == [0.1, 0.2, 0.3] and len(lines_of(chart, "line")) == 2 * (3 + 1)


def test_histogram_has_bins_of_whole_numbers_and_shares():
    chart = histogram("a", "share", "words", {"before": np.array([1.0, 2.0, 2.0, np.nan]), "after": np.array([3.0])})
    (before, after), (plot,) = plots(chart)
    assert before["y"] == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-3) and after["y"] == [0, 0, 1]
    data = json.loads(plot.attrib["data-plot"])
    assert data["at"][0] == [1, 2, 3] and data["range"] == [0.5, 3.5]


def test_layers_are_stacked_and_missing_ones_count_as_zero():
    curves = [Curve("a", X, [1.0, 2.0, 3.0]), Curve("b", X, [1.0, math.nan, 1.0])]
    chart = stacked_chart("a", "seconds", curves)
    series, _ = plots(chart)
    assert series[1]["y"] == [1, 0, 1]
    tops = re.findall(r'class="c1 area"[^>]* d="M([^"]*)Z"', chart)[0].split("L")
    assert tops[1] == tops[-2], "where the upper layer is missing, its area has no height"


@pytest.mark.parametrize("values", [[], [math.nan], [1.0], [0.1, 0.2, 5.0], [math.inf, 1.0]])
def test_any_numbers_can_be_drawn(values):
    x = {"iterations": [float(i) for i in range(len(values))]}
    for chart in (
        histogram("a", "", "words", {"before": np.array(values), "after": np.array(values)}),
        line_chart("b", "", [Curve("b", x, values, values, values)], smoothed=False),
        line_chart("b", "", []),
        band_chart("c", "", [Curve("c", x, values, values, values)]),
        stacked_chart("d", "", [Curve("d", x, values), Curve("e", x, values)]),
    ):
        assert "nan" not in chart.lower() and "inf" not in chart.lower()
        assert ElementTree.fromstring(str(chart)).tag == "div"


def test_numbers_at_an_axis_are_short():
    for value, text in ((-3.0, "-3"), (20_000.0, "20k"), (1.5e6, "1.5M"), (2e9, "2G")):
        assert f">{text}</text>" in line_chart("a", "", [Curve("a", {"x": [0.0, value]}, [0.0, value])])
