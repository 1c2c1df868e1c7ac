"""A reply as HTML, its tokens coloured by one of their numbers, and a legend of the colours.

Colours are light, with dark text on them, so that they can be read on a light page and on a dark one; the numbers stand
below the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl4dialog.policies.token_details import TokenDetails
from rl4dialog.serving.page_html import escaped

Colour = tuple[int, int, int]

_PALE: Colour = (247, 247, 244)
_ORANGE: Colour = (243, 153, 72)
_GREEN: Colour = (110, 190, 130)
_RED: Colour = (238, 130, 120)
_BLUE: Colour = (125, 170, 235)
_UNKNOWN = "rgb(200, 200, 200)"


@dataclass(frozen=True)
class Quantity:
    """What tokens can be coloured by.

    Attributes:
        name: Of the numbers in :class:`TokenDetails`.
        label: For people.
        unit: Of the numbers.
        colours: Of the lowest and of the highest number, with others between them in equal steps.
    """

    name: str
    label: str
    unit: str
    colours: tuple[Colour, ...]


QUANTITIES = {
    quantity.label: quantity
    for quantity in (
        Quantity("log_probs", "log-prob", "nats", (_ORANGE, _PALE)),
        Quantity("values", "value", "reward", (_PALE, _GREEN)),
        Quantity("kl", "KL", "nats", (_BLUE, _PALE, _RED)),
    )
}


@dataclass(frozen=True)
class Scale:
    """Which colour a number has.

    Attributes:
        quantity: The numbers.
        low: The lowest, which has the first colour.
        high: The highest, which has the last colour.
    """

    quantity: Quantity
    low: float
    high: float

    def colour(self, number: float) -> str:
        """As CSS has it; grey for what is no finite number."""
        if not math.isfinite(number):
            return _UNKNOWN
        share = (number - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        colours = self.quantity.colours
        position = min(max(share, 0.0), 1.0) * (len(colours) - 1)
        first = min(int(position), len(colours) - 2)
        rest = position - first
        mixed = (a + (b - a) * rest for a, b in zip(colours[first], colours[first + 1], strict=True))
        return f"rgb({', '.join(str(round(value)) for value in mixed)})"


def common_scale(quantity: Quantity, details: Iterable[TokenDetails | None]) -> Scale | None:
    """One scale for several replies, so that a colour means the same in each of them.

    Returns:
        From the lowest number to 0 for log-probabilities, symmetric around 0 for KL, from the lowest to the highest for
        values; ``None`` if there are no numbers.
    """
    lists = [_numbers(quantity, one) or [] for one in details if one is not None]
    numbers = [number for one in lists for number in one if math.isfinite(number)]
    if not numbers:
        return None
    if quantity.name == "log_probs":
        return Scale(quantity, min(numbers), 0.0)
    if quantity.name == "kl":
        furthest = max(map(abs, numbers))
        return Scale(quantity, -furthest, furthest)
    return Scale(quantity, min(numbers), max(numbers))


def tokens_html(details: TokenDetails, quantity: Quantity, scale: Scale | None) -> str:
    """The tokens of a reply, each with its number; without numbers the tokens, and why there are none."""
    numbers = _numbers(quantity, details)
    if numbers is None or scale is None:
        why = details.missing.get(quantity.name, "there are none for this reply")
        tokens = "".join(_token(text, title=_title(details, i)) for i, text in enumerate(details.texts))
        return f'<div class="tokens">{tokens}</div><p class="missing">No {quantity.label}: {escaped(why)}</p>'
    tokens = "".join(
        _token(text, number, scale.colour(number), _title(details, i))
        for i, (text, number) in enumerate(zip(details.texts, numbers, strict=True))
    )
    return f'<div class="tokens">{tokens}</div>{_legend(scale)}'


def _numbers(quantity: Quantity, details: TokenDetails) -> Sequence[float] | None:
    numbers: Sequence[float] | None = getattr(details, quantity.name)
    return numbers


def _token(text: str, number: float | None = None, colour: str = _UNKNOWN, title: str = "") -> str:
    below = "" if number is None else f"<small>{_rounded(number)}</small>"
    blank = text.replace(" ", "␣") if text.isspace() else text
    shown = escaped(blank).replace("\n", "⏎") or "∅"
    return f'<span class="token" style="background: {colour}" title="{title}"><b>{shown}</b>{below}</span>'


def _title(details: TokenDetails, index: int) -> str:
    """All numbers of a token, for the pointer that rests on it."""
    found = []
    for quantity in QUANTITIES.values():
        numbers = _numbers(quantity, details)
        if numbers is not None:
            found.append(f"{quantity.label} {_rounded(numbers[index])}")
    return ", ".join(found)


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
    # No "-0.00", which is what a log-probability near 0 would be.
    return f"{round(number, 2) + 0.0:.2f}"
