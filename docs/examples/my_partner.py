"""A partner with a goal: a guest who wants a certain drink, pays for the right offer, and then leaves."""

import random

from rl4dialog import Partner, PartnerRegistry, PartnerReply


@PartnerRegistry.register("guest")
class Guest(Partner):
    """A guest who wants one of several drinks.

    Args:
        drinks: The drinks; each conversation is about one of them.
    """

    can_open = True
    pays = True
    outcomes = ("success",)

    def __init__(self, drinks: list[str]):
        self.drinks = drinks

    def reset(self, meta_info, seed):
        self.wish = random.Random(seed).choice(self.drinks)
        self.is_served = False

    def secret(self):
        return self.wish

    def open(self):
        return "hello ! i am thirsty ."

    def reply(self, history):
        words = history[-1].lower().split()
        offered = [drink for drink in self.drinks if drink in words]
        if offered == [self.wish]:
            self.is_served = True
            return PartnerReply(f"{self.wish}, yes please !", reward=1.0, leaves=True)
        if offered:
            return PartnerReply("no , something else .", reward=-0.1)
        return "what do you have ?"

    def outcome(self):
        return {"success": float(self.is_served)}
