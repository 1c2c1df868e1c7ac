"""Calls against a gold call: the share of right slots, as outcomes and as a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import ConversationReward
from rl4dialog.core.types import Call, Dialogue
from rl4dialog.features.tools.calls import CallError, read_text

GOLD_KEY = "gold_call"


def gold_call(meta_info: Mapping[str, Any]) -> Call | None:
    """The call that a sample wants, in its ``meta_data["gold_call"]``: a text, or ``name`` and ``arguments``."""
    gold = meta_info.get(GOLD_KEY)
    if gold is None:
        return None
    try:
        if isinstance(gold, str):
            return Call(*read_text(gold))
        return Call(str(gold["name"]), dict(gold["arguments"]))
    except (CallError, KeyError, TypeError, ValueError):
        what = "a call such as 'call book_ride name=Ann', or an object with name and arguments"
        raise DataError(f"meta_data[{GOLD_KEY!r}] must be {what}, not {shown(gold)}") from None


def right_slots(calls: Sequence[Call], gold: Call) -> float:
    """Share of right slots in the last call, among those that it or the gold call has; 0 for another function.

    A slot of the gold call can have a list of right values. Case and space do not matter, nor how a number is written.
    """
    if not calls or calls[-1].name.casefold() != gold.name.casefold():
        return 0.0
    given = {slot.casefold(): value for slot, value in calls[-1].arguments.items()}
    wanted = {slot.casefold(): value for slot, value in gold.arguments.items()}
    names = given.keys() | wanted.keys()
    if not names:
        return 1.0
    return sum(name in wanted and _is_right(given.get(name), wanted[name]) for name in names) / len(names)


def _is_right(given: Any, wanted: Any) -> bool:
    return _plain(given) in map(_plain, wanted if isinstance(wanted, (list, tuple)) else [wanted])


def _plain(value: Any) -> Any:
    text = " ".join(str(value).casefold().split())
    try:
        return float(text)
    except ValueError:
        return text


def call_outcome(calls: Sequence[Call], gold: Call | None) -> dict[str, float]:
    """Numbers of calls in a conversation and, if there is a gold call, whether the last one is right."""
    found = {"calls": float(len(calls)), "failed_calls": float(sum(bool(call.problem) for call in calls))}
    if gold is not None:
        share = right_slots(calls, gold)
        found |= {"right_slots": share, "right_call": float(share == 1 and not calls[-1].problem)}
    return found


class RightCallReward(ConversationReward):
    """At the end, the share of right slots in the last call against the sample's ``meta_data["gold_call"]``.

    Slots that the gold call does not have count as wrong, and a call of another function earns nothing.

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
