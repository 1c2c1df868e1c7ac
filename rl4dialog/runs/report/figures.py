"""Small plots as inline SVG, in the colors of the page.

A plot is drawn once for each horizontal axis that its curves have; ``report.js`` switches between them, and shows the
values under the pointer. Plots have no title or legend; the page adds both as text that wraps on narrow screens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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


_Draw = Callable[[_Scale, _Scale, str], Iterable[str]]


def line_chart(
    title: str, unit: str, curves: Sequence[Curve], target: float | None = None, smoothed: bool = True
) -> Markup:
    """Plot lines, with a title for screen readers, the unit of the vertical axis, and a level to mark.

    From 20 points on, ``smoothed`` ones are a bold moving average over a tenth of them, and thin raw values. Otherwise,
    ``low`` and ``high`` are drawn as intervals.
    """
    thin = [_thinned(curve) for curve in curves]
    windows = [smoothing_window(len(curve.y)) if smoothed else 1 for curve in thin]

    def draw(x: _Scale, y: _Scale, axis: str) -> Iterable[str]:
        if target is not None:
            yield f'<path class="target" d="M{_LEFT} {y(target):.1f}H{_RIGHT}"/>'
        for i, (curve, window) in enumerate(zip(thin, windows, strict=True)):
            at = curve.x[axis]
            if window > 1:
                yield _line(i, "raw", x, y, at, curve.y)
                yield _line(i, "line", x, y, at, smooth(curve.y, window))
                continue
            for position, low, high in _known(at, curve.low, curve.high):
                yield f'<path class="c{_color(i)} line" d="M{x(position):.1f} {y(low):.1f}V{y(high):.1f}"/>'
            yield _line(i, "line", x, y, at, curve.y)
            for position, value in _known(at, curve.y) if len(at) <= _MAX_DOTS else ():
                yield f'<circle class="c{_color(i)} dot" cx="{x(position):.1f}" cy="{y(value):.1f}" r="3"/>'

    return _chart(title, unit, thin, draw, [] if target is None else [target])


def band_chart(title: str, unit: str, curves: Sequence[Curve]) -> Markup:
    """Plot lines with bands from ``low`` to ``high``."""
    thin = [_thinned(curve) for curve in curves]

    def draw(x: _Scale, y: _Scale, axis: str) -> Iterable[str]:
        for i, curve in enumerate(thin):
            yield _area(i, x, y, curve.x[axis], curve.low, curve.high, 0.2)
            yield _line(i, "line", x, y, curve.x[axis], curve.y)

    return _chart(title, unit, thin, draw)


def stacked_chart(title: str, unit: str, curves: Sequence[Curve]) -> Markup:
    """Plot parts of a whole, in the order of :data:`COLORS`; missing values count as zero."""
    thin = [_thinned(replace(curve, y=[v if math.isfinite(v) else 0.0 for v in curve.y])) for curve in curves]
    edges = np.cumsum([np.zeros_like(thin[0].y), *(curve.y for curve in thin)], axis=0).tolist() if thin else []

    def draw(x: _Scale, y: _Scale, axis: str) -> Iterable[str]:
        for i, curve in enumerate(thin):
            yield _area(i, x, y, curve.x[axis], edges[i], edges[i + 1], 0.8)

    return _chart(title, unit, thin, draw, [0.0, *(edges[-1] if edges else ())])


def histogram(title: str, unit: str, axis: str, samples: Mapping[str, NDArray[np.float64]]) -> Markup:
    """Plot overlaid histograms of shares, in the order of :data:`COLORS`, over ``axis``."""
    known = {label: values[np.isfinite(values)] for label, values in samples.items()}
    edges = _edges(np.concatenate(list(known.values())))
    centers = ((edges[:-1] + edges[1:]) / 2).tolist()
    shares = [np.histogram(values, edges)[0] / max(1, len(values)) for values in known.values()]
    curves = [Curve(label, {axis: centers}, share.tolist()) for label, share in zip(known, shares, strict=True)]

    def draw(x: _Scale, y: _Scale, axis: str) -> Iterable[str]:
        for i, curve in enumerate(curves):
            steps = "".join(
                f"V{y(share):.1f}H{x(right):.1f}" for share, right in zip(curve.y, edges[1:].tolist(), strict=True)
            )
            outline = f"M{x(float(edges[0])):.1f} {y(0):.1f}{steps}V{y(0):.1f}"
            yield f'<path class="c{_color(i)} bars" d="{outline}"/>'

    return _chart(title, unit, curves, draw, [0.0], (float(edges[0]), float(edges[-1])))


def _chart(
    title: str,
    unit: str,
    curves: Sequence[Curve],
    draw: _Draw,
    levels: Sequence[float] = (),
    x_range: tuple[float, float] | None = None,
) -> Markup:
    """One plot for each horizontal axis, with the values of the curves as data.

    ``draw`` returns the shapes, given both scales and the name of the horizontal axis. ``levels`` are further values
    within the vertical axis, and ``x_range`` is that of the horizontal one, by default from the curves.
    """
    values = _finite([*levels, *(value for c in curves for part in (c.y, c.low, c.high) for value in part)])
    low, high = y_range(values)
    is_cut = low > 0 or high < 0
    y = _Scale(low, high, _BOTTOM, _TOP)
    series = [
        {"label": c.label, "y": _rounded(c.y), **({"low": _rounded(c.low), "high": _rounded(c.high)} if c.low else {})}
        for c in curves
    ]
    axes = list(curves[0].x) if curves else [""]
    plots = []
    for n, axis in enumerate(axes):
        at = [_rounded(curve.x[axis]) for curve in curves]
        whole = all(value is None or float(value).is_integer() for row in at for value in row)
        ends = x_range or _ends(_finite([value for curve in curves for value in curve.x[axis]]))
        x = _Scale(*ends, _LEFT, _RIGHT)
        shapes = "".join(draw(x, y, axis))
        label = f"{unit} (cut axis)" if is_cut else unit
        data = json.dumps(
            {"axis": axis, "range": ends, "at": at, "area": [_LEFT, _RIGHT, _TOP, _BOTTOM], "width": _WIDTH}
        )
        hidden = ' hidden=""' if n else ""
        plots.append(
            f'<div class="plot" data-axis="{escape(axis)}" data-plot="{escape(data)}"{hidden}>'
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(_description(title, curves))}">'
            f"{_frame(x, y, axis, label, whole, is_cut)}{shapes}</svg></div>"
        )
    return Markup(f'<div class="chart" data-series="{escape(json.dumps(series))}">{"".join(plots)}</div>')


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


def _line(i: int, kind: str, x: _Scale, y: _Scale, at: Sequence[float], values: Sequence[float]) -> str:
    """A line with gaps where a value is missing."""
    path, pen = "", "M"
    for position, value in zip(at, values, strict=True):
        if not math.isfinite(position + value):
            pen = "M"
            continue
        path += f"{pen}{x(position):.1f} {y(value):.1f}"
        pen = "L"
    return f'<path class="c{_color(i)} {kind}" d="{path}"/>' if path else ""


def _area(
    i: int, x: _Scale, y: _Scale, at: Sequence[float], low: Sequence[float], high: Sequence[float], opacity: float
) -> str:
    if not (known := _known(at, low, high)):
        return ""
    upper = "L".join(f"{x(position):.1f} {y(top):.1f}" for position, _, top in known)
    lower = "L".join(f"{x(position):.1f} {y(bottom):.1f}" for position, bottom, _ in reversed(known))
    return f'<path class="c{_color(i)} area" fill-opacity="{opacity}" d="M{upper}L{lower}Z"/>'


def _known(*columns: Sequence[float]) -> list[tuple[float, ...]]:
    """Rows of columns, without those that lack a value."""
    return [row for row in zip(*columns, strict=False) if math.isfinite(sum(row))]


def _color(i: int) -> int:
    return i % len(COLORS)


def _description(title: str, curves: Sequence[Curve]) -> str:
    """First and last value of each curve, for screen readers."""
    known = [(curve.label, values) for curve in curves if (values := _finite(curve.y))]
    return "; ".join([title, *(f"{label} from {values[0]:.3g} to {values[-1]:.3g}" for label, values in known)])


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
