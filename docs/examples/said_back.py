"""A reward for names and numbers of the goal that the model has said to its partner, minus a cost for each turn."""

import re

from rl4dialog import ConversationReward, RewardFunctionRegistry
from rl4dialog.core.types import AGENT


@RewardFunctionRegistry.register("said_back")
class SaidBack(ConversationReward):
    needs_partner = True

    def __init__(self, per_turn: float = -0.02):
        self.per_turn = per_turn

    def __call__(self, dialogue, over):
        if not over:
            return self.per_turn
        wanted = set(re.findall(r"[A-Z]\w+|\d+", dialogue.meta_data["goal"]))
        said = set(re.findall(r"\w+", " ".join(dialogue.texts(AGENT))))
        return self.per_turn + len(wanted & said) / max(1, len(wanted))
