"""Domains of MultiWOZ, with the slots of its database and their spelling in dialogue acts.

Domains and constraints are in the order of ConvLab-2's vectors.
"""

from __future__ import annotations

from rl4dialog.tasks.dialogue_acts.ontology import CHOICE, REFERENCE, Domain, Ontology

_CONTACT = ("address", "phone", "postcode")
ONTOLOGY = Ontology(
    [
        Domain(
            "attraction",
            informable=("type", "name", "area"),
            requestable=(*_CONTACT, "entrance fee", "area", "type", "pricerange", "openhours"),
        ),
        Domain(
            "restaurant",
            informable=("food", "pricerange", "name", "area"),
            requestable=(*_CONTACT, "food", "pricerange", "area"),
            bookable=("people", "day", "time"),
            times=("time",),
        ),
        Domain(
            "train",
            informable=("leaveAt", "destination", "day", "arriveBy", "departure"),
            requestable=("duration", "price", "trainID", "arriveBy", "leaveAt"),
            bookable=("people",),
            key="trainID",
            bounds={"leaveAt": "at least", "arriveBy": "at most"},
        ),
        Domain(
            "hotel",
            informable=("name", "area", "parking", "pricerange", "stars", "internet", "type"),
            requestable=(*_CONTACT, "pricerange", "internet", "parking", "area", "type", "stars"),
            bookable=("people", "day", "stay"),
        ),
        Domain(
            "taxi",
            informable=("leaveAt", "destination", "departure", "arriveBy"),
            requestable=("car type", "phone"),
            key="car type",
            times=("leaveAt", "arriveBy"),
            generated=("car type", "phone"),
            required=(("leaveAt", "arriveBy"), ("departure",), ("destination",)),
        ),
        Domain("hospital", informable=("department",), requestable=_CONTACT, key="department"),
        Domain("police", informable=(), requestable=_CONTACT),
    ],
    {
        "center": "centre",
        "mutliple sports": "multiple sports",
        "night club": "nightclub",
        "portugese": "portuguese",
        "swimming pool": "swimmingpool",
    },
)
_SLOTS = {
    "Addr": "address",
    "Arrive": "arriveBy",
    "Car": "car type",
    "Choice": CHOICE,
    "Depart": "departure",
    "Dest": "destination",
    "Fee": "entrance fee",
    "Id": "trainID",
    "Leave": "leaveAt",
    "Open": "openhours",
    "Post": "postcode",
    "Price": "pricerange",
    "Ref": REFERENCE,
    "Ticket": "price",
    "none": "",
}
BOOKING_SLOTS = frozenset({"", "day", "name", "people", "stay", "time", REFERENCE})
"""Slots of acts of the domain `booking`."""


def slot_of(domain: str, spelling: str) -> str:
    """The database's name of a slot.

    Args:
        domain: The domain, in lower case.
        spelling: The slot in a dialogue act of MultiWOZ, such as ``Addr``.
    """
    if (domain, spelling) == ("train", "Time"):
        return "duration"
    return _SLOTS.get(spelling, spelling.lower())
