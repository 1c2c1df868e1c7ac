"""A simulated user for calls, by rules: says the values of the sample's gold call, one at a time."""

from __future__ import annotations

import re
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Partner
from rl4dialog.features.tools.right_calls import GOLD_KEY, Wanted, gold_call
from rl4dialog.text.words import content_words

_STEM = 5  # letters: departing, departure


class SlotValues(Partner):
    """Wants the sample's gold call, and says one of its values a turn.

    That is the value of the slot that the agent asks for, and otherwise the first that was not said yet. A question
    asks for a slot if a word of its name begins like one of the question: "departing" for ``DepartureLocation``.

    Args:
        otherwise: What it says once all values are said.
    """

    role = "You want what is written below. Answer what you are asked."
    can_open = True
    checks_samples = True

    def __init__(self, otherwise: str = "that is all .") -> None:
        self._otherwise = otherwise

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        if (gold := gold_call(meta_info)) is None:
            raise DataError(f"partner 'slot_values' needs samples with meta_data[{GOLD_KEY!r}]")
        self._wanted = _words(gold.name)
        said = {slot: _said(value) for slot, value in gold.arguments.items()}
        self._values = {_words(slot): value for slot, value in said.items() if value is not None}
        self._left = list(self._values)

    def secret(self) -> str:
        return "; ".join([self._wanted, *(f"{slot}: {value}" for slot, value in self._values.items())])

    def open(self) -> str:
        return f"{self._wanted} ."

    def reply(self, history: list[str]) -> str:
        asked = _stems(history[-1])
        slot = max(self._values, key=lambda slot: len(_stems(slot) & asked), default="")
        if _stems(slot) & asked:
            self._left = [each for each in self._left if each != slot]
            return f"{self._values[slot]} ."
        if not self._left:
            return self._otherwise
        slot = self._left.pop(0)
        return f"{slot}: {self._values[slot]} ."


def _said(value: Any) -> str | None:
    """The value as it is said; None if any other value is right."""
    if isinstance(value, Wanted):
        return None if value.unwanted else value.values[0]
    return str(value[0] if isinstance(value, (list, tuple)) else value)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).lower()


def _stems(text: str) -> set[str]:
    return {word[:_STEM] for word in content_words(text)}
