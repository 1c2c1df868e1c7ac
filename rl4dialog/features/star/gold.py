"""The right call of a conversation: what its goal says, found by the rules in ``gold.yaml``.

A slot that the goal leaves open has no right value. The clerk's last query is only compared with it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.features.star.reading import Conversation, Query
from rl4dialog.features.tools.right_calls import MIN_COMMON, Wanted, words
from rl4dialog.text.words import content_words

Verdict = Literal["same", "spelled", "earlier", "moved", "clerk", "missing", "unsaid"]
"""How a slot of the query compares with the goal.

It is the same, or ``spelled`` otherwise; an ``earlier`` query had it; the user said only the other value (``moved``),
or also the goal's (``clerk``), or neither (``unsaid``); or the query does not have the slot.
"""
UNCLEAR: frozenset[Verdict] = frozenset({"moved", "unsaid"})
ABOUT = frozenset({"ChangeDescription"})
"""Slots in the clerk's own words, besides those of the type ``LongString``."""


@functools.cache
def rules() -> dict[str, list[tuple[re.Pattern[str], Mapping[str, str]]]]:
    """Patterns of goals with the values that they stand for, by API."""
    raw: dict[str, Any] = packaged_yaml(Path(__file__).with_name("gold.yaml"))
    pieces: dict[str, str] = raw.pop("pieces")

    def flat(found: list[Any]) -> Iterable[tuple[re.Pattern[str], Mapping[str, str]]]:
        for rule in found:
            if isinstance(rule, list) and not (len(rule) == 2 and isinstance(rule[1], dict)):
                yield from flat(rule)
                continue
            pattern, values = rule if isinstance(rule, list) else (rule, {})
            for name, piece in pieces.items():
                pattern = pattern.replace(f"{{{name}}}", piece)
            yield re.compile(pattern), values

    return {api: [*flat(found)] for api, found in raw.items()}


def gold_of(
    api: str, text: str, schema: Mapping[str, Any], before: Mapping[str, Wanted] | None = None
) -> dict[str, Wanted]:
    """Derive what a goal in words wants in each slot of an API, beside what was wanted ``before``."""
    slots = {each["Name"]: each["Type"] for each in schema.get("input", ())}
    found = dict(before or {})
    for pattern, constants in rules().get(api, ()):
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
    elif kind == "next":
        values = (value, str(int(value) + 1))
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
    """A conversation's right call, compared with the query of the clerk that is nearest to it."""

    api: str
    goal: str  # the goal in words, with the instructions that the user took up and the values that the user chose
    gold: Mapping[str, Wanted]
    chosen: frozenset[str]  # slots of the gold call that the goal leaves open: they are as the user said
    query: Query
    is_last: bool
    verdicts: Mapping[str, Verdict]
    n_open: int  # required slots without a right value

    @property
    def why_left_out(self) -> str:
        """Why it is not clear what the right call is; empty if it is."""
        if self.n_open > len(self.gold):
            return "most slots are open"
        own = [
            slot for slot, verdict in self.verdicts.items() if verdict in UNCLEAR and not self.gold[slot].in_own_words
        ]
        return f"the user went another way: {', '.join(own)}" if own else ""

    @property
    def agrees(self) -> bool:
        return {*self.verdicts.values()} <= {"same", "spelled"}


def compare(conversation: Conversation, schemas: Mapping[str, Mapping[str, Any]]) -> Comparison | None:
    """Compare the right call of a conversation's only task with the clerk's queries; None if there is neither."""
    queries = [each for each in conversation.queries if each.api in conversation.tasks]
    if len(conversation.tasks) != 1 or not queries or queries[-1].api not in rules():
        return None
    api, end = queries[-1].api, queries[-1].place
    schema, told = schemas.get(api, {}), conversation.goal
    gold = gold_of(api, told, schema)
    for place, text in conversation.instructions:
        changed = gold_of(api, text, schema, gold)
        new = [each for slot, each in changed.items() if each != gold.get(slot) and not each.unwanted]
        said = words(conversation.said(end, place))
        # An instruction such as to change one's mind is not always followed; the first one is a part of the goal.
        is_ignored = place and new and not any(is_said(value, said) for each in new for value in each.values)
        if not said or is_ignored:
            continue
        gold, told = changed, f"{told} {text}"
    gold = {slot: wanted for slot, wanted in gold.items() if not _is_needless(slot, gold)}
    all_said = words(conversation.said(end))
    scores = [
        sum(bool(wanted.compare(query.arguments.get(slot))) for slot, wanted in gold.items()) for query in queries
    ]
    best = max(range(len(queries)), key=lambda i: (scores[i], i))
    query = queries[best]
    is_open = {
        slot: slot not in gold or gold[slot].unwanted for slot in schema.get("required", ()) if slot != "RequestType"
    }
    chosen = {slot: query.arguments.get(slot, "") for slot in is_open if is_open[slot]}
    chosen = {slot: value for slot, value in chosen.items() if value and is_said(value, all_said)}
    chosen = {slot: value for slot, value in chosen.items() if slot not in gold or gold[slot].compare(value)}
    if chosen:
        told += f" ({', '.join(f'{slot}: {value}' for slot, value in chosen.items())})"
        gold |= {slot: Wanted((value,)) for slot, value in chosen.items()}
    verdicts = {slot: _verdict(wanted, slot, query, queries, all_said) for slot, wanted in gold.items()}
    is_last = best == len(queries) - 1
    return Comparison(
        api, told, gold, frozenset(chosen), query, is_last, verdicts, sum(slot not in gold for slot in is_open)
    )


def _is_needless(slot: str, gold: Mapping[str, Wanted]) -> bool:
    """Whether an answer to a question of security is not asked for, because account and PIN are known."""
    return slot.startswith("SecurityAnswer") and {"AccountNumber", "PIN"} <= gold.keys()


def _verdict(wanted: Wanted, slot: str, query: Query, queries: list[Query], said: str) -> Verdict:
    value = query.arguments.get(slot)
    if found := wanted.compare(value):
        return found
    if any(wanted.compare(each.arguments.get(slot)) for each in queries):
        return "earlier"
    if value is None:
        return "missing"
    if value in ("Yes", "No"):
        about = " ".join(re.findall(r"[A-Z][a-z]+", slot)[1:])  # such as parking
        return "clerk" if content_words(about) & content_words(said) else "unsaid"
    before = {"Departure": "from", "Arrival": "to"}.get(slot.removesuffix("Location").removesuffix("City"), "")
    if before and is_said(value, said, before=before) and not is_said(wanted.values[0], said, before=before):
        return "moved"  # both places were said, the other way round
    if any(is_said(each, said, wanted.in_own_words) for each in wanted.values):
        return "clerk"
    return "moved" if is_said(value, said) else "unsaid"


def is_said(value: str, said: str, in_own_words: bool = False, before: str = "") -> bool:
    """Whether a value occurs in what was said, as `words`, with another word ``before`` it.

    A time can lack am or pm, and the name of a place its last word.
    """
    if in_own_words:
        ours = content_words(words(value))
        return bool(ours) and len(ours & content_words(said)) >= MIN_COMMON * len(ours)
    found = words(value)
    forms = {found, re.sub(r"^(\d+)[ap]m$", r"\1", found)} | {
        short for short in [found.rpartition(" ")[0]] if len(short) > 3
    }
    pattern = "|".join(map(re.escape, forms))
    return re.search(rf"\b{before}(?: the)? (?:{pattern})\b" if before else rf"\b(?:{pattern})\b", said) is not None
