"""Calls against a gold call: the share of right slots, as outcomes and as a reward."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import ConversationReward
from rl4dialog.core.types import Call, Dialogue
from rl4dialog.features.tools.calls import CallError, read_text
from rl4dialog.text.words import content_words

GOLD_KEY = "gold_call"
MIN_COMMON = 0.5
"""Share of the words that are enough of what is in own words."""
_MIN_RATIO = 0.8
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_WORD = re.compile(r"\d+ ?[ap]m\b|\w+(?:'\w+)?")


@dataclass(frozen=True)
class Wanted:
    """What is wanted in a slot as people write it: one of these values or, if they are unwanted, none of them."""

    values: tuple[str, ...]
    unwanted: bool = False
    in_own_words: bool = False  # whether a part of its words is enough

    def compare(self, said: str | None) -> Literal["same", "spelled", ""]:
        """Compare with an argument of a call."""
        said = said and re.sub(r"^at (?:most|least) ", "", said)
        options = [*map(words, said.split(" or "))] if said else []
        if self.unwanted:
            return "" if any(words(value) in options for value in self.values) else "same"
        if not said or (len(options) > 1 and not self.in_own_words):
            return ""
        found = [_same(value, said, self.in_own_words) for value in self.values]
        return "same" if "same" in found else "spelled" if "spelled" in found else ""


def words(text: str) -> str:
    """A text as lower-case words: numbers as digits, times such as ``9pm``, dates such as ``8``."""
    found = _WORD.findall(text.casefold().replace("&", " and "))
    plain = (re.sub(r"^(\d+)(?:st|nd|rd|th)$", r"\1", word.replace(" ", "")) for word in found)
    return " ".join(str(_NUMBERS.index(word)) if word in _NUMBERS else word for word in plain)


def _same(value: str, said: str, in_own_words: bool) -> Literal["same", "spelled", ""]:
    one, other = words(value).removeprefix("the "), words(said).removeprefix("the ")
    if one == other:
        return "same"
    if in_own_words:
        ours, theirs = content_words(one), content_words(other)
        common = ours & theirs
        is_near = any(each.isdigit() for each in common) or len(common) >= MIN_COMMON * min(len(ours), len(theirs))
        return "same" if common and is_near else ""
    numbers = [sorted(map(int, re.findall(r"\d+", text))) for text in (one, other)]
    if "/" in value or value.isdigit():  # a date, in which day and month can change places; or 0314
        return "spelled" if numbers[0] == numbers[1] else ""
    is_within = re.search(rf"\b{re.escape(one)}\b", other) is not None
    is_near = is_within or difflib.SequenceMatcher(None, one, other).ratio() >= _MIN_RATIO
    return "spelled" if is_near and numbers[0] == numbers[1] else ""


class Gold(NamedTuple):
    """The call that a sample wants."""

    name: str
    arguments: Mapping[str, Any]  # values, lists of right values, or `Wanted`
    is_open: bool = False  # whether other slots do not count


def gold_call(meta_info: Mapping[str, Any]) -> Gold | None:
    """The call in ``meta_data["gold_call"]``: a text, or ``name`` and ``arguments``; a `DataError` for others."""
    gold = meta_info.get(GOLD_KEY)
    if gold is None:
        return None
    try:
        if isinstance(gold, str):
            return Gold(*read_text(gold))
        arguments = {slot: _wanted(value) for slot, value in dict(gold["arguments"]).items()}
        return Gold(str(gold["name"]), arguments, bool(gold.get("open", False)))
    except (CallError, AttributeError, KeyError, TypeError, ValueError):
        what = "a call such as 'call book_ride name=Ann', or an object with name and arguments"
        raise DataError(f"meta_data[{GOLD_KEY!r}] must be {what}, not {shown(gold)}") from None


def _wanted(value: Any) -> Any:
    return Wanted(**{**value, "values": tuple(map(str, value["values"]))}) if isinstance(value, Mapping) else value


def right_slots(calls: Sequence[Call], gold: Gold) -> float:
    """Share of right slots in the last call, among those that it or the gold call has; 0 for another function.

    A slot of the gold call can have a list of right values. Case and space do not matter, nor how a number is written.
    """
    if not calls or calls[-1].name.casefold() != gold.name.casefold():
        return 0.0
    given = {slot.casefold(): value for slot, value in calls[-1].arguments.items()}
    wanted = {slot.casefold(): value for slot, value in gold.arguments.items()}
    names = wanted.keys() if gold.is_open else given.keys() | wanted.keys()
    if not names:
        return 1.0
    return sum(name in wanted and _is_right(given.get(name), wanted[name]) for name in names) / len(names)


def _is_right(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, Wanted):
        return bool(wanted.compare(None if given is None else str(given)))
    return _plain(given) in map(_plain, wanted if isinstance(wanted, (list, tuple)) else [wanted])


def _plain(value: Any) -> Any:
    text = " ".join(str(value).casefold().split())
    try:
        return float(text)
    except ValueError:
        return text


def call_outcome(calls: Sequence[Call], gold: Gold | None) -> dict[str, float]:
    """Numbers of calls in a conversation and, if there is a gold call, whether the last one is right."""
    found = {"calls": float(len(calls)), "failed_calls": float(sum(bool(call.problem) for call in calls))}
    if gold is not None:
        share = right_slots(calls, gold)
        found |= {"right_slots": share, "right_call": float(share == 1 and not calls[-1].problem)}
    return found


class RightCallReward(ConversationReward):
    """At the end, the share of right slots in the last call against the sample's ``meta_data["gold_call"]``.

    Slots that the gold call does not have count as wrong, unless it is open, and a call of another function earns
    nothing.

    Args:
        exact: Whether only a call without any mistake is paid.
        per_turn: Reward of every turn; negative to prefer short conversations.
    """

    needs_partner = True
    needs_calls = True

    def __init__(self, exact: bool = False, per_turn: float = 0.0) -> None:
        self._key, self._per_turn = "right_call" if exact else "right_slots", per_turn

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        if not over:
            return self._per_turn
        if (gold := gold_call(dialogue.meta_data)) is None:
            raise DataError(f"reward 'right_call' needs samples with meta_data[{GOLD_KEY!r}]")
        return self._per_turn + call_outcome(dialogue.calls, gold)[self._key]
