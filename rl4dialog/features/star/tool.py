"""The knowledge base of STAR as a tool: it answers a call as it answered a similar one of the conversations."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from rl4dialog.core.arguments import Fraction
from rl4dialog.core.errors import DataError
from rl4dialog.features.star.gold import rules, words
from rl4dialog.features.star.reading import answer_text, files_of, place_of
from rl4dialog.features.tools.calls import Slot, Tool

_IS_REFUSAL = re.compile(
    r"unavailable|fail|conflict|booked at that time|too small|unable|must provide|could not|not authorized",
    re.IGNORECASE,
)
_MAX_ANSWERS = 40  # of one kind; they differ in random numbers only


class StarApis(Tool):
    """Answers calls of STAR's APIs with what the knowledge base answered to calls with the same slots.

    In its answers, values of the earlier call are replaced by those of this one.

    Args:
        path: The repository of STAR; by default that of the datapool ``star``.
        refuses: Share of the calls that are refused, if they could be: that a time slot is taken, or a hotel is full.
    """

    def __init__(
        self, path: str | None = None, refuses: Fraction = 0.0, pool_args: Mapping[str, Any] | None = None
    ) -> None:
        self._refuses, self._random = refuses, random.Random(0)
        self.functions: Mapping[str, Mapping[str, Slot]] = {api: {} for api in rules()}
        self._answers: dict[str, dict[frozenset[str], list[tuple[Mapping[str, str], str]]]] = {}
        try:
            place = place_of(path or (pool_args or {}).get("path"))
        except DataError:  # the datapool says so
            return
        conversations, schemas = files_of(place)
        for each in (query for conversation in conversations for query in conversation.queries):
            of_kind = self._answers.setdefault(each.api, {}).setdefault(_kind(each.arguments), [])
            if each.answer and len(of_kind) < _MAX_ANSWERS:
                of_kind.append((each.arguments, answer_text(each.answer)))
        self.functions = {
            api: {each["Name"]: _slot(each, api_schema["required"]) for each in api_schema["input"]}
            for api, api_schema in schemas.items()
            if api in self._answers
        }
        if not self.functions:
            raise DataError(f"tool 'star': {place} has no APIs such as apis/apis/ride_book.json")

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        given = {slot: str(value) for slot, value in arguments.items()}
        kind = _kind(given)
        known = {each: answers for each, answers in self._answers[name].items() if answers}
        # Nobody may have called with just these slots.
        nearest = max(known, key=lambda each: (len(each & kind) - len(each ^ kind), sorted(each)), default=None)
        if nearest is None:
            return "nothing found"
        is_refused = self._random.random() < self._refuses
        answers = [each for each in known[nearest] if (_IS_REFUSAL.search(each[1]) is not None) == is_refused]
        asked, text = self._random.choice(answers or known[nearest])
        for slot, value in asked.items():
            if slot in given and len(words(value)) > 1:
                text = text.replace(value, given[slot])
        return text


def _kind(arguments: Mapping[str, str]) -> frozenset[str]:
    """The slots of a call, with what is requested."""
    return frozenset(f"{slot}={value}" if slot == "RequestType" else slot for slot, value in arguments.items())


def _slot(about: Mapping[str, Any], required: list[str]) -> Slot:
    kind = tuple(about["Categories"]) if about["Type"] in ("Categorical", "RequestType") else str
    return Slot(kind or str, about["Name"] in required)
