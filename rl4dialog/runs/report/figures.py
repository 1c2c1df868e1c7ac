"""Small plots as inline SVG, in the text color of the page.

Plots have no title or legend; the page adds both as text that wraps on narrow screens.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rl4dialog.runs.plots import smooth, smoothing_window
from rl4dialog.runs.report.curves import Curve

# Legible on white and on black.
COLORS = ("#3b82c4", "#e07b1a", "#2f9e6e", "#c9568f", "#8b6cd1", "#a88420", "#3aa6b5", "#888888")

_INK = "#010203"  # placeholder for the page's text color
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text instead of paths: smaller, and in the page's font
    "font.size": 8.5,
    **dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
_MAX_POINTS = 400
_N_BINS = 30


def line_chart(title: str, curves: Sequence[Curve], target: float | None = None, smoothed: bool = True) -> Markup:
    """Plot lines over the iterations.

    Args:
        title: Label for screen readers.
        curves: In the order of :data:`COLORS`. ``low`` and ``high`` are drawn as intervals if not smoothed.
        target: A level to mark.
        smoothed: From 20 points on, draw a bold moving average over a tenth of them, and thin raw values.
    """

    def draw(axes: Any) -> None:
        for i, curve in enumerate(curves):
            if smoothed:
                _draw_smoothed(axes, curve, COLORS[i % len(COLORS)])
            else:
                _draw_points(axes, curve, COLORS[i % len(COLORS)])
        if target is not None:
            axes.axhline(target, color="#888888", linestyle="--", linewidth=1)

    return _svg(title, draw, whole_x=True)


def band_chart(title: str, curves: Sequence[Curve]) -> Markup:
    """Plot lines with bands from ``low`` to ``high``."""

    def draw(axes: Any) -> None:
        for i, curve in enumerate(curves):
            color = COLORS[i % len(COLORS)]
            x, y, low, high = (_thinned(values) for values in (curve.x, curve.y, curve.low, curve.high))
            axes.plot(x, y, color=color, linewidth=2)
            axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)

    return _svg(title, draw)


def stacked_chart(title: str, x: Sequence[float], layers: Sequence[Sequence[float]]) -> Markup:
    """Plot parts of a whole over the iterations, in the order of :data:`COLORS`; missing values count as zero."""

    def draw(axes: Any) -> None:
        heights = [_thinned([0.0 if math.isnan(value) else value for value in layer]) for layer in layers]
        axes.stackplot(_thinned(x), *heights, colors=COLORS[: len(layers)], linewidth=0)
        axes.set_ylim(bottom=0)

    return _svg(title, draw, whole_x=True)


def histogram(title: str, samples: Mapping[str, NDArray[np.float64]]) -> Markup:
    """Plot overlaid histograms of shares, in the order of :data:`COLORS`."""
    known = {label: values[~np.isnan(values)] for label, values in samples.items()}

    def draw(axes: Any) -> None:
        together = np.concatenate(list(known.values()))
        edges = _edges(together)
        for color, values in zip(COLORS, known.values(), strict=False):
            shares = np.histogram(values, edges)[0] / max(1, len(values))
            axes.stairs(shares, edges, color=color, fill=True, alpha=0.25)
            axes.stairs(shares, edges, color=color, linewidth=1.5)
        axes.set_ylim(bottom=0)

    return _svg(title, draw)


def _draw_smoothed(axes: Any, curve: Curve, color: str) -> None:
    x, y = _thinned(curve.x), _thinned(curve.y)
    window = smoothing_window(len(y))
    if window == 1:
        axes.plot(x, y, color=color, linewidth=2, marker="o", markersize=3)
        return
    axes.plot(x, y, color=color, linewidth=1, alpha=0.35)
    axes.plot(x, smooth(y, window), color=color, linewidth=2)


def _draw_points(axes: Any, curve: Curve, color: str) -> None:
    axes.plot(curve.x, curve.y, color=color, linewidth=1.5, marker="o", markersize=4)
    if curve.low:
        axes.vlines(curve.x, curve.low, curve.high, color=color, linewidth=1.5, alpha=0.6)


def _thinned(values: Sequence[float]) -> list[float]:
    """Averages of adjacent points, if there are more than a plot of this size can show."""
    step = math.ceil(len(values) / _MAX_POINTS)
    if step <= 1:
        return list(values)
    return [sum(part) / len(part) for i in range(0, len(values), step) if (part := values[i : i + step])]


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bin edges: one bin per number for few integers, otherwise bins of equal width."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if high - low <= _N_BINS and np.all(values == np.round(values)):
        return np.arange(low - 0.5, high + 1.0)
    return np.histogram_bin_edges(values, _N_BINS)


def _svg(title: str, draw: Callable[[Any], None], whole_x: bool = False) -> Markup:
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    # The salt keeps SVG ids unique on the page.
    with rc_context({**_STYLE, "svg.hashsalt": title}):
        figure, axes = _canvas()
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole_x, steps=[1, 2, 5, 10]))
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _inline(title, buffer.getvalue())


def _canvas() -> tuple[Any, Any]:
    """Empty figure and axes, reused for all plots, because creating ticks takes half of the time."""
    from matplotlib.transforms import Bbox

    figure, axes = _new_canvas()
    for artist in [*axes.lines, *axes.collections, *axes.patches]:
        artist.remove()
    axes.dataLim = Bbox.null()
    axes.ignore_existing_data_limits = True
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.autoscale(True)
    return figure, axes


@cache
def _new_canvas() -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(3.8, 2.2))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.16, 0.11, 0.82, 0.80))  # a layout engine would double the time
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    axes.grid(color="#888888", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    return figure, axes


def _short(value: float) -> str:
    """Format a tick label: 20k for 20000."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"


def _inline(title: str, svg: str) -> Markup:
    """Extract the SVG element without file headers, scaled to the width of its place on the page."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img" @>', svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg).replace(_INK, "currentColor").replace("xlink:href", "href")
    return Markup(svg.replace("@", Markup('aria-label="{}"').format(title), 1))
