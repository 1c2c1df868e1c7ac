"""Renders a reply as HTML, with tokens colored by one of their numbers, and a color legend.

Colors are light with dark text on them, so they are legible on light and dark pages; the numbers are printed below the
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rl4dialog.features.serving.page import escaped
from rl4dialog.features.serving.replies import TokenDetails

Colour = tuple[int, int, int]

_PALE: Colour = (247, 247, 244)
_ORANGE: Colour = (243, 153, 72)
_GREEN: Colour = (110, 190, 130)
_RED: Colour = (238, 130, 120)
_BLUE: Colour = (125, 170, 235)
_UNKNOWN = "rgb(200, 200, 200)"


@dataclass(frozen=True)
class Quantity:
    """A number by which tokens can be colored, an attribute of :class:`TokenDetails`."""

    name: str
    label: str
    unit: str
    colours: tuple[Colour, ...]  # from the lowest to the highest number, in equal steps


_QUANTITIES = (
    Quantity("log_probs", "log-prob", "nats", (_ORANGE, _PALE)),
    Quantity("values", "value", "reward", (_PALE, _GREEN)),
    Quantity("kl", "KL", "nats", (_BLUE, _PALE, _RED)),
    Quantity("advantages", "Q - V", "reward", (_RED, _PALE, _GREEN)),
)
QUANTITIES = {quantity.label: quantity for quantity in _QUANTITIES}


@dataclass(frozen=True)
class Scale:
    """A mapping of numbers to colors, from the first one for `low` to the last one for `high`."""

    quantity: Quantity
    low: float
    high: float

    def colour(self, number: float) -> str:
        """CSS color of a number; gray if it is not finite."""
        if not math.isfinite(number):
            return _UNKNOWN
        colours = self.quantity.colours
        share = (number - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        steps = np.linspace(0, 1, len(colours))
        mixed = (np.interp(share, steps, channel) for channel in zip(*colours, strict=True))
        return f"rgb({', '.join(str(round(value)) for value in mixed)})"


def common_scale(quantity: Quantity, details: Iterable[TokenDetails | None]) -> Scale | None:
    """One scale for several replies, so that colors are comparable; ``None`` if there are no numbers.

    It ends at 0 for log-probabilities, and is symmetric around 0 for KL and advantages.
    """
    lists = [getattr(one, quantity.name) or [] for one in details if one is not None]
    numbers = [number for one in lists for number in one if math.isfinite(number)]
    if not numbers:
        return None
    if quantity.name in ("kl", "advantages"):
        furthest = max(map(abs, numbers))
        return Scale(quantity, -furthest, furthest)
    return Scale(quantity, min(numbers), 0.0 if quantity.name == "log_probs" else max(numbers))


def tokens_html(details: TokenDetails, quantity: Quantity, scale: Scale | None) -> str:
    """Render the tokens of a reply with their numbers; without numbers, the tokens and the reason."""
    numbers = getattr(details, quantity.name)
    titles = [_title(details, i) for i in range(len(details.texts))]
    if numbers is None or scale is None:
        why = details.missing.get(quantity.name, "not available for this reply")
        tokens = "".join(_token(text, title=title) for text, title in zip(details.texts, titles, strict=True))
        return f'<div class="tokens">{tokens}</div><p class="missing">No {quantity.label}: {escaped(why)}</p>'
    rows = zip(details.texts, numbers, titles, strict=True)
    tokens = "".join(_token(text, number, scale.colour(number), title) for text, number, title in rows)
    return f'<div class="tokens">{tokens}</div>{_legend(scale)}'


def _token(text: str, number: float | None = None, colour: str = _UNKNOWN, title: str = "") -> str:
    below = "" if number is None else f"<small>{_rounded(number)}</small>"
    blank = text.replace(" ", "␣") if text.isspace() else text
    shown = escaped(blank).replace("\n", "⏎") or "∅"
    return f'<span class="token" style="background: {colour}" title="{title}"><b>{shown}</b>{below}</span>'


def _title(details: TokenDetails, index: int) -> str:
    """All numbers of a token, for its tooltip."""
    known = [(each.label, numbers) for each in _QUANTITIES if (numbers := getattr(details, each.name)) is not None]
    return ", ".join(f"{label} {_rounded(numbers[index])}" for label, numbers in known)


def _legend(scale: Scale) -> str:
    colours = ", ".join(f"rgb{colour}" for colour in scale.quantity.colours)
    bar = f'<span class="bar" style="background: linear-gradient(to right, {colours})"></span>'
    return (
        f'<p class="legend">{scale.quantity.label} in {scale.quantity.unit} <span>{_rounded(scale.low)}</span>{bar}'
        f"<span>{_rounded(scale.high)}</span></p>"
    )


def _rounded(number: float) -> str:
    if not math.isfinite(number):
        return "-∞" if number < 0 else "∞" if number > 0 else "NaN"
    # Avoids "-0.00" for a log-probability close to 0.
    return f"{round(number, 2) + 0.0:.2f}"
