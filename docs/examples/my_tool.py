"""A tool with two functions: it finds trains, and books seats while there are some."""

from rl4dialog import ToolRegistry
from rl4dialog.features.tools.calls import Slot, Tool


@ToolRegistry.register("trains")
class Trains(Tool):
    """Trains to a few places.

    Args:
        n_seats: Free seats of each train, in each conversation.
    """

    def __init__(self, n_seats: int = 3):
        self.n_seats = n_seats
        self.functions = {
            "find_train": {"place": Slot(("Bern", "Chur"), about="where the customer goes")},
            "book_seats": {"train": Slot(), "seats": Slot(int), "window": Slot(bool, required=False)},
        }

    def reset(self, meta_info, seed):
        self.n_free = {"B1": self.n_seats, "C7": self.n_seats}

    def call(self, name, arguments):
        if name == "find_train":
            return {"Bern": "train B1", "Chur": "train C7"}[arguments["place"]]
        train, seats = arguments["train"], arguments["seats"]
        if self.n_free.get(train, 0) < seats:
            return "not enough seats"
        self.n_free[train] -= seats
        return f"booked {seats} in {train}"
