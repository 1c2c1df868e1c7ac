"""Share of right slots in the last call of a conversation, against what its goal wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import ConversationReward
from rl4dialog.core.types import Call, Dialogue
from rl4dialog.features.star.gold import Wanted

GOLD_KEY = "gold"


def share_of_right(gold: Mapping[str, Wanted], arguments: Mapping[str, str]) -> float:
    """Share of the slots that the goal does not leave open in which a call has what is wanted."""
    return sum(bool(wanted.compare(arguments.get(slot))) for slot, wanted in gold.items()) / len(gold)


def wanted_of(gold: Mapping[str, Any]) -> dict[str, Wanted]:
    """What is wanted in each slot, from the meta data of a sample."""
    return {slot: Wanted(**{**each, "values": tuple(each["values"])}) for slot, each in gold["slots"].items()}


class RightStarCall(ConversationReward):
    """At the end, the share of right slots in the last call, for samples of the datapool ``star``.

    Slots that the goal leaves open do not count, and what the clerk writes in its own words only needs some of the
    goal's. Who calls nothing, or another API, earns nothing.

    Args:
        per_turn: Reward of every turn; negative to prefer short conversations.
    """

    needs_partner = True
    needs_calls = True

    def __init__(self, per_turn: float = 0.0) -> None:
        self._per_turn = per_turn

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        return self._per_turn + (self.share(dialogue) if over else 0.0)

    @staticmethod
    def share(dialogue: Dialogue) -> float:
        """Share of right slots in the last call."""
        gold = dialogue.meta_data.get(GOLD_KEY)
        if gold is None:
            raise DataError("reward 'right_star_call' needs the datapool star, with kind: checkable")
        last = dialogue.calls[-1] if dialogue.calls else Call("")
        arguments = {slot: str(value) for slot, value in last.arguments.items()}
        return share_of_right(wanted_of(gold), arguments) if last.name == gold["name"] else 0.0
