"""Twelve made-up conversations of six people in the form of STAR's files, with two APIs."""

import json

PEOPLE = ["ada", "bob", "cyd", "dee", "eli", "fay"]
PLACES = ["Castle", "Harbour", "Old Mill", "Zoo"]
HOTELS = ["Blue Inn", "Green Inn"]


def _slot(name, *categories, type="ShortString"):
    return {"Name": name, "Type": "Categorical" if categories else type, "Categories": list(categories)}


APIS = {
    "ride_book": {
        "input": [
            *(_slot(name) for name in ("CustomerName", "DepartureLocation", "ArrivalLocation")),
            _slot("ServiceProvider", "Uber", "Lyft"),
            _slot("RequestType", "Check", "Book"),
        ],
        "required": ["CustomerName", "DepartureLocation", "ArrivalLocation", "RequestType"],
    },
    "hotel_book": {
        "input": [
            _slot("Name", *HOTELS),
            *(_slot(name) for name in ("StartDate", "EndDate", "CustomerName")),
            _slot("CustomerRequest", type="LongString"),
            _slot("RequestType", "Check", "Book"),
        ],
        "required": ["Name", "StartDate", "EndDate", "CustomerName", "RequestType"],
    },
}


def said(text):
    return {"Agent": "User", "Action": "utter", "Text": text}


def clerk(text):
    return {"Agent": "Wizard", "Action": "pick_suggestion", "Text": text, "ActionLabel": "ask"}


def told(text, number=1):
    return {"Agent": "UserGuide", "Action": "instruct", "Text": f"{text} [instruction {number} of 2]"}


def query(api, answer=None, **arguments):
    constraints = [{slot: value if "(" in value else f'"{value}"'} for slot, value in arguments.items()]
    item = {"APIName": api, **(answer or {"Message": "It is free."})}
    return [
        {"Agent": "Wizard", "Action": "query", "APIName": api, "Constraints": constraints},
        {"Agent": "KnowledgeBase", "Action": "return_item", "APIName": api, "Item": item},
    ]


def conversation(number, task, goal, events, **changes):
    return {
        "DialogueID": number,
        "CompletionLevel": "Complete",
        "AnonymizedUserWorkerID": PEOPLE[number % 6],
        "AnonymizedWizardWorkerID": PEOPLE[(number + 1) % 6],
        "Scenario": {"UserTask": goal, "WizardCapabilities": [{"Task": task}], "Happy": True, "MultiTask": False},
        "Events": events,
        **changes,
    }


def ride(number, more=(), place=None, **changes):
    start, end = PLACES[number % 4], PLACES[(number + 1) % 4]
    goal = f"You want a ride from '{start}' to '{end}'. Your name is Ann."
    arguments = {"CustomerName": "Ann", "DepartureLocation": place or start, "ArrivalLocation": end}
    draft = {"Agent": "Wizard", "Action": "request_suggestions", "Text": "a draft"}
    events = [
        *(said("hi there"), draft, clerk("Where are you?"), said(f"At the {start}, and I am Ann.")),
        *(clerk("Where to?"), said(f"to the {end}\nplease"), *more),
        *query("ride_book", **arguments, RequestType="Check"),
        *(clerk("It comes."), said("thanks")),
    ]
    return conversation(number, "ride_book", goal, events, **changes)


def hotel(number, name=None, **changes):
    wanted = HOTELS[number % 2]
    goal = (
        f"Make a reservation at {wanted} from May {number}th to 1{number}th. Your name is Ann. Please request two beds."
    )
    arguments = {"Name": f'api.is_equal_to("{name or wanted}")', "StartDate": f"{number}th", "EndDate": f"1{number}th"}
    texts = f"{wanted} from {number}th to 1{number}th with two beds, for Ann"
    events = [
        *(said(texts), *query("hotel_book", **arguments, CustomerName="ann", CustomerRequest="2 beds")),
        *(clerk("Done."), said("bye")),
    ]
    return conversation(number, "hotel_book", goal, events, **changes)


def write_star(folder, copies=1):
    """Eight rides and four hotels: 1 is changed on the way, 2 has a mistake of the clerk, and 3 one of the user."""
    mind = [told("Tell the assistant you want a ride to Market."), clerk("Right?"), said("No, to the Market!")]
    moved = ride(3)
    moved["Events"][3]["Text"] = "At the Garden, and I am Ann."
    changed = json.loads(json.dumps(moved).replace('\\"Zoo\\"', '\\"Garden\\"'))
    found = [ride(1, mind), ride(2, place="Zoo"), changed, *map(ride, (4, 5)), *map(hotel, (6, 7, 8, 9))]
    found += [ride(10, CompletionLevel="EarlyDisconnectDuringDialogue"), ride(11), ride(12)]
    found = [{**each, "DialogueID": each["DialogueID"] + 12 * i} for i in range(copies) for each in found]
    for place, files in (("dialogues", {each["DialogueID"]: each for each in found}), ("apis/apis", APIS)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / place / f"{name}.json").write_text(json.dumps(content))
    return folder
