"""The right call of a conversation: what its goal says, found by the rules in ``gold.yaml``.

A slot that the goal leaves open has no right value. The clerk's last query is only compared with it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.features.star.reading import Conversation, Query

Verdict = Literal["agree", "typo", "earlier", "moved", "clerk", "missing", "unsaid"]
"""How a slot of the last query compares with the goal.

It is the same, or all but a misspelling; an ``earlier`` query had it, and was refused or narrowed down; the user said
the other value (``moved``), or the goal's (``clerk``), or neither (``unsaid``); or the query does not have the slot.
"""
UNCLEAR: frozenset[Verdict] = frozenset({"moved", "unsaid"})
ABOUT = frozenset({"ChangeDescription"})
"""Slots in the clerk's own words, besides those of the type ``LongString``."""
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_WORD = re.compile(r"\d+ ?[ap]m\b|\w+(?:'\w+)?")
_EMPTY_WORDS = frozenset(
    "a an the i i'm i'd you my your it its it's is are was be been have has had do not no to of in at on for from and "
    "or with by that this there would like need want please request more some any so if only about me am can go".split()
)
_MIN_COMMON = 0.5
_MIN_RATIO = 0.8


@dataclass(frozen=True)
class Wanted:
    """What a goal wants in a slot: one of these values or, if they are unwanted, none of them."""

    values: tuple[str, ...]
    unwanted: bool = False
    in_own_words: bool = False  # whether a part of its words is enough

    def compare(self, said: str | None) -> Literal["agree", "typo", ""]:
        """Compare with an argument of a call."""
        options = [] if said is None else [*map(words, said.removeprefix("at most ").split(" or "))]
        if self.unwanted:
            return "" if any(words(value) in options for value in self.values) else "agree"
        if said is None or (len(options) > 1 and not self.in_own_words):
            return ""
        found = [_same(value, said, self.in_own_words) for value in self.values]
        return next((each for each in ("agree", "typo") if each in found), "")  # type: ignore[return-value]


def words(text: str) -> str:
    """A text as lower-case words: numbers as digits, times such as ``9pm``, dates such as ``8``."""
    found = _WORD.findall(text.casefold().replace("&", " and "))
    plain = (re.sub(r"^(\d+)(?:st|nd|rd|th)$", r"\1", word.replace(" ", "")) for word in found)
    return " ".join(str(_NUMBERS.index(word)) if word in _NUMBERS else word for word in plain)


def _same(value: str, said: str, in_own_words: bool) -> str:
    one, other = words(value), words(said)
    if one == other:
        return "agree"
    if in_own_words:
        ours, theirs = content(value), content(said)
        common = len(ours & theirs)
        return "agree" if common and common >= _MIN_COMMON * min(len(ours), len(theirs)) else ""
    if "/" in value:  # a date, in which day and month can change places
        return "agree" if sorted(map(int, re.findall(r"\d+", one))) == sorted(map(int, re.findall(r"\d+", other))) else ""
    if any(c.isdigit() for c in one + other):
        return ""
    return "typo" if difflib.SequenceMatcher(None, one, other).ratio() >= _MIN_RATIO else ""


def content(text: str) -> set[str]:
    """Beginnings of the words that say something."""
    return {word[:5] for word in words(text).split() if word not in _EMPTY_WORDS}


@functools.cache
def _rules() -> dict[str, list[tuple[re.Pattern[str], Mapping[str, str]]]]:
    raw: dict[str, Any] = packaged_yaml(Path(__file__).with_name("gold.yaml"))
    pieces: dict[str, str] = raw.pop("pieces")

    def flat(rules: list[Any]) -> Iterable[tuple[re.Pattern[str], Mapping[str, str]]]:
        for rule in rules:
            if isinstance(rule, list) and not (len(rule) == 2 and isinstance(rule[1], dict)):
                yield from flat(rule)
                continue
            pattern, values = rule if isinstance(rule, list) else (rule, {})
            for name, piece in pieces.items():
                pattern = pattern.replace(f"{{{name}}}", piece)
            yield re.compile(pattern), values

    return {api: [*flat(rules)] for api, rules in raw.items()}


def apis() -> list[str]:
    """Names of the APIs with rules."""
    return list(_rules())


def gold_of(api: str, goal: str, instructions: Iterable[str] = (), schema: Mapping[str, Any] | None = None) -> dict[str, Wanted]:
    """Derive what a goal, with the instructions that follow it, wants in each slot of an API."""
    slots = {each["Name"]: each["Type"] for each in (schema or {}).get("input", ())}
    found: dict[str, Wanted] = {}
    for text in (goal, *instructions):
        for pattern, constants in _rules().get(api, ()):
            for match in pattern.finditer(text):
                groups = {name: value for name, value in match.groupdict().items() if value is not None}
                for name, value in {**constants, **groups}.items():
                    slot, _, kind = name.partition("__")
                    own = slots.get(slot) == "LongString" or slot in ABOUT
                    _add(found, slot, kind, value.strip(" ,."), own)
    return found


def _add(found: dict[str, Wanted], slot: str, kind: str, value: str, in_own_words: bool) -> None:
    before = found.get(slot)
    values = tuple(value.split(" or ")) if kind.startswith("or") else (value,)
    if kind.endswith("plus2"):
        values = tuple(map(_two_hours_later, values))
    if kind == "free":
        found.pop(slot, None)
    elif kind == "not":
        if before is None or before.unwanted or value in before.values:
            earlier = before.values if before is not None and before.unwanted else ()
            found[slot] = Wanted(tuple(dict.fromkeys((*earlier, value))), unwanted=True)
    elif kind.startswith("or") and before is not None:
        found[slot] = Wanted(tuple(dict.fromkeys((*before.values, *values))), False, in_own_words)
    else:
        found[slot] = Wanted(values, False, in_own_words)


def _two_hours_later(time: str) -> str:
    hour, half = time.split()
    later = (int(hour) % 12 + (12 if half == "pm" else 0) + 2) % 24
    return f"{later % 12 or 12} {'pm' if later >= 12 else 'am'}"


@dataclass(frozen=True)
class Comparison:
    """A conversation's right call, compared with the clerk's last query."""

    api: str
    gold: Mapping[str, Wanted]
    query: Query
    verdicts: Mapping[str, Verdict]
    n_open: int  # required slots that the goal leaves open

    @property
    def why_left_out(self) -> str:
        """Why it is not clear what the right call is; empty if it is."""
        if not self.gold:
            return "the goal names no value"
        if self.n_open > len(self.gold):
            return "the goal leaves most slots open"
        unclear = [slot for slot, verdict in self.verdicts.items() if verdict in UNCLEAR]
        return f"the user went another way: {', '.join(unclear)}" if unclear else ""

    @property
    def agrees(self) -> bool:
        return set(self.verdicts.values()) <= {"agree", "typo"}


def compare(conversation: Conversation, schemas: Mapping[str, Mapping[str, Any]]) -> Comparison | None:
    """Compare the right call of a conversation's only task with the last query; None if there is neither."""
    queries = [each for each in conversation.queries if each.api in conversation.tasks]
    if len(conversation.tasks) != 1 or not queries or queries[-1].api not in _rules():
        return None
    last = queries[-1]
    schema = schemas.get(last.api, {})
    gold = gold_of(last.api, conversation.goal, conversation.given(last.place), schema)
    said = " | ".join(words(event.text) for event in conversation.events[: last.place] if event.who == "user")
    verdicts = {slot: _verdict(wanted, slot, queries, said) for slot, wanted in gold.items()}
    n_open = len({*schema.get("required", ())} - {"RequestType"} - gold.keys())
    return Comparison(last.api, gold, last, verdicts, n_open)


def _verdict(wanted: Wanted, slot: str, queries: list[Query], said: str) -> Verdict:
    value = queries[-1].arguments.get(slot)
    if found := wanted.compare(value):
        return found
    if any(wanted.compare(query.arguments.get(slot)) for query in queries[:-1]):
        return "earlier"
    if value is None:
        return "missing"
    if is_said(value, said) and not wanted.unwanted and value:
        return "moved"
    return "clerk" if any(is_said(each, said, wanted.in_own_words) for each in wanted.values) else "unsaid"


def is_said(value: str, said: str, in_own_words: bool = False) -> bool:
    """Whether a value occurs in what was said, as `words`; a time also without am or pm."""
    if in_own_words:
        ours = content(value)
        return bool(ours) and len(ours & {word[:5] for word in said.split()}) >= _MIN_COMMON * len(ours)
    found = words(value)
    return any(re.search(rf"\b{re.escape(each)}\b", said) for each in {found, re.sub(r"^(\d+)[ap]m$", r"\1", found)})
