"""Small plots as inline SVG, in the colors of the page, which adds title and legend.

A plot is drawn once for each horizontal axis of its curves; ``report.js`` switches between them, and shows values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from rl4dialog.runs.plots import smooth, smoothing_window
from rl4dialog.runs.report.curves import Curve

# Legible on white and on black.
COLORS = ("#3b82c4", "#e07b1a", "#2f9e6e", "#c9568f", "#8b6cd1", "#a88420", "#3aa6b5", "#888888")

_WIDTH, _HEIGHT = 300, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 286, 20, 156  # of the area within the axes
_MAX_POINTS = 200
_MAX_DOTS = 40
_N_BINS = 30
# A range below this share of the largest value would be a thin strip above zero, so the axis is cut.
_CUT_BELOW = 1 / 3
# A cut axis spans at least this share of the largest value: noise of a few percent looks like noise.
_MIN_SPAN = 0.2


@dataclass(frozen=True)
class _Scale:
    """Maps values from ``low`` to ``high`` to coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, n: int, whole: bool = False) -> list[float]:
        from matplotlib.ticker import MaxNLocator

        steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
        room = 1e-9 * (self.high - self.low)
        found = MaxNLocator(n, integer=whole, steps=steps).tick_values(self.low, self.high)
        return [float(value) for value in found if self.low - room <= value <= self.high + room]


_Layer = tuple[int, str, Sequence[Sequence[float]]]
"""Shapes of a plot: number of their curve, their kind, and the columns of numbers at the points of the curve."""


def line_chart(
    title: str, unit: str, curves: Sequence[Curve], target: float | None = None, smoothed: bool = True
) -> Markup:
    """Plot lines, with a title for screen readers, the unit of the vertical axis, and a level to mark.

    From 20 points on, ``smoothed`` ones are a bold moving average over a tenth of them, and thin raw values. Otherwise,
    ``low`` and ``high`` are drawn as intervals.
    """
    thin, layers = [_thinned(curve) for curve in curves], list[_Layer]()
    for i, curve in enumerate(thin):
        window = smoothing_window(len(curve.y)) if smoothed else 1
        if window > 1:
            layers += [(i, "raw", [curve.y]), (i, "line", [smooth(curve.y, window)])]
        else:
            layers += [(i, "interval", [curve.low, curve.high]), (i, "line", [curve.y])]
            layers += [(i, "dot", [curve.y])] if len(curve.y) <= _MAX_DOTS else []
    return _chart(title, unit, thin, layers, target=target)


def band_chart(title: str, unit: str, curves: Sequence[Curve]) -> Markup:
    """Plot lines with bands from ``low`` to ``high``."""
    thin, layers = [_thinned(curve) for curve in curves], list[_Layer]()
    for i, curve in enumerate(thin):
        layers += [(i, "band", [curve.low, curve.high]), (i, "line", [curve.y])]
    return _chart(title, unit, thin, layers)


def stacked_chart(title: str, unit: str, curves: Sequence[Curve]) -> Markup:
    """Plot parts of a whole, in the order of :data:`COLORS`; missing values count as zero."""
    thin = [_thinned(replace(curve, y=[v if math.isfinite(v) else 0.0 for v in curve.y])) for curve in curves]
    edges = np.cumsum([np.zeros_like(thin[0].y), *(curve.y for curve in thin)], axis=0).tolist() if thin else [[]]
    layers: list[_Layer] = [(i, "part", edges[i : i + 2]) for i in range(len(thin))]
    return _chart(title, unit, thin, layers, [0.0, *edges[-1]])


def histogram(title: str, unit: str, axis: str, samples: Mapping[str, NDArray[np.float64]]) -> Markup:
    """Plot overlaid histograms of shares, in the order of :data:`COLORS`, over ``axis``."""
    known = {label: values[np.isfinite(values)] for label, values in samples.items()}
    edges = _edges(np.concatenate(list(known.values())))
    left, right, centers = (each.tolist() for each in (edges[:-1], edges[1:], (edges[:-1] + edges[1:]) / 2))
    shares = [np.histogram(values, edges)[0] / max(1, len(values)) for values in known.values()]
    curves = [Curve(label, {axis: centers}, share.tolist()) for label, share in zip(known, shares, strict=True)]
    layers: list[_Layer] = [(i, "bars", [left, right, curve.y]) for i, curve in enumerate(curves)]
    return _chart(title, unit, curves, layers, [0.0], (left[0], right[-1]))


def _chart(
    title: str,
    unit: str,
    curves: Sequence[Curve],
    layers: Sequence[_Layer],
    levels: Sequence[float] = (),
    x_range: tuple[float, float] | None = None,
    target: float | None = None,
) -> Markup:
    """One plot per horizontal axis, with values as data; the vertical axis contains ``levels`` and ``target``."""
    levels = [*levels, *([] if target is None else [target])]
    low, high = y_range(_finite([*levels, *(v for c in curves for part in (c.y, c.low, c.high) for v in part)]))
    is_cut = low > 0 or high < 0
    y = _Scale(low, high, _BOTTOM, _TOP)
    series = [
        {"label": c.label, "y": _rounded(c.y), **({"low": _rounded(c.low), "high": _rounded(c.high)} if c.low else {})}
        for c in curves
    ]
    known = [(curve.label, values) for curve in curves if (values := _finite(curve.y))]
    description = "; ".join([title, *(f"{label} from {values[0]:.3g} to {values[-1]:.3g}" for label, values in known)])
    plots = []
    for n, axis in enumerate(curves[0].x if curves else [""]):
        at = [_rounded(curve.x[axis]) for curve in curves]
        whole = all(value is None or float(value).is_integer() for row in at for value in row)
        ends = x_range or _ends(_finite([value for curve in curves for value in curve.x[axis]]))
        x = _Scale(*ends, _LEFT, _RIGHT)
        shapes = "" if target is None else f'<path class="target" d="M{_LEFT} {y(target):.1f}H{_RIGHT}"/>'
        shapes += "".join(_shape(i, kind, x, y, curves[i].x[axis], columns) for i, kind, columns in layers)
        label = f"{unit} (cut axis)" if is_cut else unit
        data = {"axis": axis, "range": ends, "at": at, "area": [_LEFT, _RIGHT, _TOP, _BOTTOM], "width": _WIDTH}
        hidden = ' hidden=""' if n else ""
        plots.append(
            f'<div class="plot" data-axis="{escape(axis)}" data-plot="{escape(json.dumps(data))}"{hidden}>'
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(description)}">'
            f"{_frame(x, y, axis, label, whole, is_cut)}{shapes}</svg></div>"
        )
    return Markup(f'<div class="chart" data-series="{escape(json.dumps(series))}">{"".join(plots)}</div>')


def _shape(i: int, kind: str, x: _Scale, y: _Scale, at: Sequence[float], columns: Sequence[Sequence[float]]) -> str:
    """The shapes of a layer; a line has gaps where a value is missing."""
    color = f"c{i % len(COLORS)}"
    known = [row for row in zip(at, *columns, strict=False) if math.isfinite(sum(row))]
    if not known and kind != "bars":
        return ""
    if kind == "interval":
        return "".join(f'<path class="{color} line" d="M{x(p):.1f} {y(a):.1f}V{y(b):.1f}"/>' for p, a, b in known)
    if kind == "dot":
        return "".join(f'<circle class="{color} dot" cx="{x(p):.1f}" cy="{y(v):.1f}" r="3"/>' for p, v in known)
    if kind in ("band", "part"):
        upper = "L".join(f"{x(p):.1f} {y(top):.1f}" for p, _, top in known)
        lower = "L".join(f"{x(p):.1f} {y(bottom):.1f}" for p, bottom, _ in reversed(known))
        opacity = 0.2 if kind == "band" else 0.8
        return f'<path class="{color} area" fill-opacity="{opacity}" d="M{upper}L{lower}Z"/>'
    path = ""
    if kind == "bars":
        steps = "".join(f"V{y(share):.1f}H{x(right):.1f}" for _, _, right, share in known)
        path = f"M{x(columns[0][0]):.1f} {y(0):.1f}{steps}V{y(0):.1f}"
    else:
        pen = "M"
        for position, value in zip(at, columns[0], strict=True):
            is_known = math.isfinite(position + value)
            path += f"{pen}{x(position):.1f} {y(value):.1f}" if is_known else ""
            pen = "L" if is_known else "M"
    return f'<path class="{color} {kind}" d="{path}"/>'


def y_range(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a vertical axis: from zero if the values come near it, otherwise cut, but not so that noise fills it."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if size == 0:
        return 0.0, 1.0
    span = high - low
    if low < 0 < high:
        return low - 0.05 * span, high + 0.05 * span
    if span >= _CUT_BELOW * size:
        return (0.0, 1.05 * high) if low >= 0 else (1.05 * low, 0.0)
    half, middle = max(1.1 * span, _MIN_SPAN * size) / 2, (low + high) / 2
    return middle - half, middle + half


def _frame(x: _Scale, y: _Scale, x_label: str, y_label: str, whole: bool, is_cut: bool) -> str:
    """Grid, ticks and labels of both axes; a zigzag marks a vertical axis that does not start at zero."""
    parts = []
    for value in y.ticks(6):
        at, kind = f"{y(value):.1f}", "zero" if value == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {at}H{_RIGHT}"/>')
        if not is_cut or y(value) < _BOTTOM - 26:  # leaves room for the zigzag
            parts.append(f'<text class="y" x="{_LEFT - 5}" y="{float(at) + 4:.1f}">{_short(value)}</text>')
    for value in x.ticks(4, whole):
        at = f"{x(value):.1f}"
        parts.append(f'<path class="grid" d="M{at} {_TOP}V{_BOTTOM}"/>')
        parts.append(f'<text class="x" x="{at}" y="{_BOTTOM + 15}">{_short(value)}</text>')
    foot = f"V{_BOTTOM - 14}l-4 -2l8 -4l-4 -2V{_TOP}" if is_cut else f"V{_TOP}"
    parts.append(f'<path class="axis" d="M{_RIGHT} {_BOTTOM}H{_LEFT}{foot}"/>')
    parts.append(f'<text x="2" y="11">{escape(y_label)}</text>')
    parts.append(f'<text class="x" x="{(_LEFT + _RIGHT) / 2:.0f}" y="{_HEIGHT - 4}">{escape(x_label)}</text>')
    return "".join(parts)


def _thinned(curve: Curve) -> Curve:
    """A curve with averages of adjacent points, if there are more than a plot of this size can show."""
    x = {axis: _means(values) for axis, values in curve.x.items()}
    return Curve(curve.label, x, *(_means(values) for values in (curve.y, curve.low, curve.high)))


def _means(values: Sequence[float]) -> list[float]:
    step = math.ceil(len(values) / _MAX_POINTS)
    if step <= 1:
        return [float(value) for value in values]
    return [sum(part) / len(part) for i in range(0, len(values), step) if (part := values[i : i + step])]


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _rounded(values: Iterable[float]) -> list[Any]:
    """Numbers as JSON with four digits, ``None`` for those that it does not have."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bin edges: one bin per number for few integers, otherwise bins of equal width."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if high - low <= _N_BINS and np.all(values == np.round(values)):
        return np.arange(low - 0.5, high + 1.0)
    return np.histogram_bin_edges(values, _N_BINS)


def _short(value: float) -> str:
    """Format a tick label: 20k for 20000."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:.4g}"
