"""ConvLab-2's rules: dialogues judged by hand, one per rule."""

import pytest

from rl4dialog.features.dialogue_acts.tasks import outcome
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct
from rl4dialog.features.dialogue_acts.tasks.dialogue import Booking, Exchange
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Domain, Ontology

ONTOLOGY = Ontology(
    [
        Domain("hotel", ("area", "stars"), ("address", "phone", "area", "stars"), bookable=("people",)),
        Domain(
            "train",
            ("departure", "arriveBy", "day"),
            ("duration", "arriveBy"),
            bookable=("people",),
            key="trainID",
            bounds={"arriveBy": "at most"},
        ),
        Domain("taxi", ("leaveAt",), ("car type",), key="car type", generated=("car type",)),
        Domain("shop", ("area",), ("phone",)),
        Domain("police", (), ("phone",)),
    ]
)
DATABASE = Database(
    ONTOLOGY,
    {
        "hotel": [
            {"name": "acorn", "area": "north", "stars": "4", "phone": "01223353888", "address": "154 chesterton road"},
            {"name": "bridge", "area": "east", "stars": "4", "phone": "01223353942", "address": "15 hills road"},
        ],
        "train": [
            {"trainID": "tr1", "departure": "ely", "arriveBy": "10:00", "day": "monday", "duration": "17 minutes"},
            {"trainID": "tr2", "departure": "ely", "arriveBy": "12:00", "day": "monday", "duration": "17 minutes"},
        ],
        "taxi": [{"car type": "red ford"}],
        "shop": [{"name": "corner", "area": "mill end", "phone": "extension 7"}],
        "police": [{"name": "station", "phone": "01223358966"}],
    },
)


def inform(domain, slot, value, intent="inform"):
    return DialogueAct(intent, domain, slot, value)


def judged(domains, *said, bookings=(), reply=()):
    exchange = Exchange((), (), (), said, bookings)
    return outcome.convlab_outcome_of(Goal("g", domains), [exchange], True, DATABASE, reply)


def booked(domain, entity):
    return Booking(domain, entity, {"people": "2"}, "ABCD")


HOTEL = {"hotel": DomainGoal({"area": "north", "stars": "4"}, requests=("phone",))}
BOOKED = {"hotel": DomainGoal({"area": "north", "stars": "4"}, book={"people": "3"})}


PHONE, WRONG_PHONE = inform("hotel", "phone", "01223353888"), inform("hotel", "phone", "98765009999")
ADDRESS, AREA, SHOP = inform("hotel", "address", "15 hills road"), inform("hotel", "area", "north"), "extension 7"
STARS_ONLY = {"hotel": DomainGoal({"stars": "4"}, requests=("phone",))}
FINAL = {"hotel": DomainGoal({"area": "north"}, fail_info={"area": "east"}, book={"people": "2"})}
ACORN, BRIDGE = booked("hotel", "acorn"), booked("hotel", "bridge")


def train(arrives="11:00"):
    return {"train": DomainGoal({"departure": "ely", "arriveBy": arrives, "day": "monday"}, book={"people": "2"})}


def test_numbers_of_a_success():
    domains = {"hotel": DomainGoal({"area": "north"}, requests=("phone",), book={"people": "2"})}
    names = ("success", "complete", "final_goal", "book", "inform_precision", "inform_recall", "inform_f1")
    assert judged(domains, PHONE, bookings=(ACORN,)).numbers() == {f"convlab2/{name}": 1 for name in names}


def test_numbers_without_requests_and_bookings_are_missing_and_the_goal_fails():
    found = judged({"hotel": DomainGoal({"area": "north"})}, inform("hotel", "name", "acorn"))
    assert found.numbers() == {"convlab2/success": 0, "convlab2/complete": 1, "convlab2/final_goal": 1}


@pytest.mark.parametrize(
    ("intent", "recall"),
    [*((intent, 1) for intent in ("inform", "recommend", "offerbook", "offerbooked")),
     *((intent, 0) for intent in ("select", "book", "nooffer"))],
)  # fmt: skip
def test_a_request_is_answered_by_some_intents(intent, recall):
    found = judged(HOTEL, PHONE._replace(intent=intent))
    assert found.success == bool(recall) and found.numbers()["convlab2/inform_recall"] == recall


@pytest.mark.parametrize(
    ("goal", "told", "bookings", "is_success"),
    [
        (HOTEL, [inform("hotel", "phone", "01223353942")], [], True),  # another's: 8 of 11 digits agree in order
        (HOTEL, [WRONG_PHONE], [], False),  # resembles no fitting entity
        # No entity fits the pattern of phone numbers, so it is not used.
        ({"shop": DomainGoal({"area": "mill end"}, requests=("phone",))}, [inform("shop", "phone", SHOP)], [], True),
        (BOOKED, [], [ACORN], True),  # for 2 people, where 3 were asked for
        (BOOKED, [], [BRIDGE], False),
        (BOOKED, [], [BRIDGE, ACORN], False),  # only the first one counts
        ({"taxi": DomainGoal({"leaveAt": "10:00"}, requests=("car type",))},
         [inform("taxi", "car type", "red ford")], [], True),
    ],
)  # fmt: skip
def test_success(goal, told, bookings, is_success):
    found = judged(goal, *told, bookings=tuple(bookings))
    assert found.success == is_success
    assert told != [WRONG_PHONE] or found.numbers()["convlab2/inform_recall"] == 1


@pytest.mark.parametrize(
    ("goal", "bookings", "share"),
    [
        (BOOKED, [BRIDGE], 0.5),
        (BOOKED, [], 0),
        ({"hotel": DomainGoal(book={"people": "2"})}, [], None),
        (FINAL, [BRIDGE], 0),  # the final constraints count, though the first were never refused
        (train(), [booked("train", "tr1")], 1),  # times are bounds, and the ends of a ride are not compared
        (train(), [booked("train", "tr2")], 0.5),
        (train("noon"), [booked("train", "tr2")], 1),  # what is no time fits every time
    ],
)
def test_book_is_the_share_of_constraints_of_the_booked_entity(goal, bookings, share):
    found = judged(goal, inform("hotel", "name", "acorn"), bookings=tuple(bookings))
    assert found.book == found.numbers().get("convlab2/book") == share


@pytest.mark.parametrize(
    ("goal", "told", "precision"),
    [
        (HOTEL, [PHONE, AREA], 1),  # a constraint
        (STARS_ONLY, [PHONE, AREA], 0.5),
        (HOTEL, [PHONE, ADDRESS], 1),
        (HOTEL, [PHONE, inform("shop", "phone", SHOP)], 0.5),
        # Malformed values.
        *((HOTEL, [inform("hotel", *pair), PHONE], 0.5)
          for pair in (("phone", "12345"), ("stars", "four"), ("area", "upstairs"))),
    ],
)  # fmt: skip
def test_what_is_told_in_vain_costs_precision(goal, told, precision):
    numbers = judged(goal, *told).numbers()
    assert numbers["convlab2/inform_precision"] == precision
    assert numbers["convlab2/inform_f1"] == pytest.approx(2 * precision / (precision + 1))


def test_a_malformed_value_is_no_answer():
    numbers = judged({"hotel": DomainGoal(requests=("stars", "address"))}, inform("hotel", "stars", "four")).numbers()
    assert numbers["convlab2/inform_recall"] == 0


def test_a_goal_that_no_entity_satisfies_fails():
    domains = {"hotel": DomainGoal({"area": "south"}, requests=("phone",))}
    found = judged(domains, PHONE)
    assert found.domains["hotel"].success and not found.success and found.numbers()["convlab2/final_goal"] == 0
    assert judged({**domains, **train(), "taxi": DomainGoal()}).numbers()["convlab2/final_goal"] == pytest.approx(2 / 3)


def test_unanswered_requests_fit_no_entity_but_where_none_are_compared():
    police = {"police": DomainGoal(requests=("phone",))}
    assert judged(HOTEL | police).numbers()["convlab2/final_goal"] == 1 / 2
    assert judged(police, inform("police", "phone", "98765009999")).success


def test_resemblance_is_that_of_the_best_part():
    pairs = (("Hills Road", "15 hills road"), ("abcd", "xabczx"), ("", "x"))
    assert [outcome.resemblance(*pair) for pair in pairs] == [100, 75, 0]


def test_reward_pays_for_the_goal_for_the_domain_of_the_last_act_and_charges_other_turns():
    def paid(*judging, **more):
        found = judged(*judging, **more)
        return outcome.ConvLab2Reward()(outcome.TaskTurn(Exchange((), (), (), ()), None, lambda: found))

    domains = {**HOTEL, "taxi": DomainGoal(requests=("car type",))}
    assert (paid(HOTEL, PHONE), paid(HOTEL), paid(domains, PHONE)) == (40, -1, 5)
    assert paid(domains, PHONE, reply=[DialogueAct("bye", "general")]) == 5
    assert paid(domains, PHONE, reply=[DialogueAct("request", "taxi", "car type")]) == -1
    with pytest.raises(ValueError, match="ConvLab2Reward needs a TaskTurn with 'convlab'"):
        outcome.ConvLab2Reward()(outcome.TaskTurn(Exchange((), (), (), ()), None))
