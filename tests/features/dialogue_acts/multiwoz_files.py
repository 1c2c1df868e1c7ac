"""A small MultiWOZ in the original format: databases, three dialogues a split, vocabularies."""

import json

NO_GOAL = {"taxi": {}, "police": {}, "hospital": {}, "topic": {"taxi": False}, "message": ["Hello"]}
HOTEL = {
    "info": {"area": "east", "stars": "4"},
    "fail_info": {"area": "west", "stars": "4"},
    "reqt": ["phone"],
    "book": {"people": "3", "day": "monday", "stay": "2", "invalid": False, "pre_invalid": True},
    "fail_book": {"stay": "5"},
}
TRAIN = {
    "info": {"destination": "ely", "departure": "cambridge", "day": "monday", "arriveBy": "12:00"},
    "fail_info": {},
    "reqt": ["duration", "price"],
    "book": {"people": "3", "invalid": False},
}
ATTRACTION = {"info": {"type": "mutliple sports", "area": "do n't care"}, "reqt": ["entrance fee"]}
TAXI = {"info": {"leaveAt": "17:15"}, "reqt": ["car type", "phone"], "fail_info": {}}
TIMES = (("sunday", "09:50", "10:07"), ("monday", "11:50", "12:07"), ("monday", "9:50", "10:07"))
DATABASE = {
    "attraction": [
        {
            **{"name": "The Field", "area": "centre", "type": "multiple sports", "entrance fee": "?"},
            **{"address": "park street", "phone": "01223000003", "postcode": "cb58as", "location": [1, 2]},
        }
    ],
    "hotel": [
        {
            **{
                "name": "A and B",
                "area": "east",
                "stars": "4",
                "parking": "no",
                "internet": "yes",
                "type": "guesthouse",
            },
            **{"pricerange": "moderate", "address": "124 tenison road", "phone": "01223315702", "postcode": "cb12dp"},
            **{"price": {"double": "70"}},
        },
        {
            **{"name": "Acorn", "area": "north", "stars": "4", "parking": "yes", "internet": "yes", "type": "hotel"},
            **{"pricerange": "cheap", "address": "154 road", "phone": "01223353888", "postcode": "cb41da"},
        },
    ],
    "restaurant": [
        {
            **{"name": "Pizza Hut", "area": "east", "food": "italian", "pricerange": "cheap"},
            **{"address": "regent street", "phone": "01223323737", "postcode": "cb21ab"},
        }
    ],
    "train": [
        {
            **{"trainID": "TR0001", "departure": "cambridge", "destination": "ely", "day": day},
            **{"leaveAt": leave, "arriveBy": arrive, "duration": "17 minutes", "price": "4.40 pounds"},
        }
        for day, leave, arrive in TIMES
    ],
    "hospital": [
        {"department": "Oncology", "id": 0, "phone": "01223217216", "address": "hills rd", "postcode": "cb20qq"}
    ],
    "police": [{"name": "Parkside", "address": "parkside", "phone": "01223358966", "postcode": "cb11jg"}],
    "taxi": {"taxi_colors": ["black", "red"], "taxi_types": ["ford"], "taxi_phone": ["^[0-9]{10}$"]},
}


def log(*utterances):
    """Utterances with these acts."""
    return [{"text": f"words {i}", "metadata": {}, "dialog_act": acts} for i, acts in enumerate(utterances)]


LOG = log(
    {"Train-Inform": [["Dest", "ely"], ["Arrive", "12:00"]], "Train-Request": [["Time", "?"]]},
    {"Train-Inform": [["Id", "TR0001"], ["Time", "17 minutes"]], "general-reqmore": [["none", "none"]]},
    {"Hotel-Inform": [["Area", "east"], ["Stay", "2"]], "Hotel-Request": [["Post", "?"]]},
    {"Booking-Book": [["Ref", "AB12"]], "Hotel-Select": [["none", "none"]], "Hotel-Inform": [["Price", "cheap"]]},
)

SAID = log(
    {},
    {
        "Attraction-Inform": [["Name", "the field"], ["Type", "museum"], ["Area", "centre"], ["Fee", "free"]],
        "Hotel-Inform": [["Name", "acorn"], ["Area", "east"], ["Stars", "4"], ["Phone", "01223353888"]],
        "Taxi-Request": [["Depart", "?"], ["Dest", "?"]],
        "Taxi-Inform": [["Car", "red ford"], ["Phone", "07123456789"]],
    },
)
"""An exchange with acts of the agent for all goals of these dialogues."""


def dialogue(log=LOG, **goal):
    """A dialogue with this goal."""
    return {"goal": {**NO_GOAL, **goal}, "log": log}


def write_multiwoz(folder, **splits):
    """Write the folder; by default without ``train.json``."""
    (folder / "db").mkdir(parents=True)
    for name, entities in DATABASE.items():
        (folder / "db" / f"{name}_db.json").write_text(json.dumps(entities))
    several = {
        f"PMUL{i}": dialogue(
            [*LOG, *SAID],
            train={**TRAIN, "reqt": ["price"] * (i % 2)},
            hotel={**HOTEL, "book": {**HOTEL["book"], "people": str(i % 8 + 1)}},
        )
        for i in range(10)
    }
    given = {"val": several, "test": {"MUL1": dialogue(attraction=ATTRACTION, taxi=TAXI)}, **splits}
    for split, records in given.items():
        (folder / f"{split}.json").write_text(json.dumps(records))
    (folder / "usr_da_voc.txt").write_text("Hotel-Inform-Area-1\nPolice-Request-Post-?\ngeneral-bye-none-none\n")
    (folder / "sys_da_voc.txt").write_text("Booking-Book-Ref-1\nTrain-Inform-Time-1\nHotel-NoOffer-none-none\n")
    return str(folder)
