"""STAR: its files, the right calls of its goals, groups of people, and the reward."""

import json
import pickle
import random
import re
import shutil
from collections import Counter
from dataclasses import replace

import httpx
import pytest
from star_stand_in import APIS, PEOPLE, write_star

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Call, Turn
from rl4dialog.data.public_datasets import prepare_dataset
from rl4dialog.features.star.exchange import Exchange, ordinal
from rl4dialog.features.star.gold import compare, gold_of
from rl4dialog.features.star.pool import Star, people_groups
from rl4dialog.features.star.reading import constraint_text, read_apis, read_conversations
from rl4dialog.features.star.tool import StarApis
from rl4dialog.features.tools.calls import read_text
from rl4dialog.features.tools.right_calls import RightCallReward, Wanted

ALL = {"groups": {"train": [1], "val": [1], "test": [2]}, "n_groups": 2, "held_out_share": 0.0}


@pytest.fixture(scope="module")
def star(tmp_path_factory):
    return write_star(tmp_path_factory.mktemp("star"))


@pytest.fixture(scope="module")
def conversations(star):
    return {each.id: each for each in read_conversations(star)}


def test_what_was_said_is_read_without_drafts(conversations):
    assert list(conversations) == list(range(1, 13))
    found = conversations[4]
    order = "user clerk user clerk user call answer clerk user"
    assert " ".join(event.who for event in found.events) == order
    assert found.events[4].text == "to the Harbour please"
    name, arguments = read_text(found.events[5].text)
    assert name == "ride_book"
    assert arguments == {**found.queries[0].arguments} and arguments["ArrivalLocation"] == "Harbour"
    assert found.queries[0].answer == {"Message": "It is free."}
    assert (found.user, found.clerk) == ("eli", "fay")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ('"9 pm"', "9 pm"),
        ("42 ", "42"),
        ('api.is_equal_to("Blue Inn")', "Blue Inn"),
        ('api.is_one_of(["a","b"])', "a or b"),
        ("api.is_less_than(178)", "at most 178"),
        ("null", ""),
        ("api.is_one_of()", ""),
    ],
)
def test_constraints_are_plain_text(constraint, text):
    assert constraint_text(constraint) == text


def test_right_call_is_what_the_goal_wants(conversations, star):
    found = {id: compare(each, read_apis(star)) for id, each in conversations.items()}
    assert found[4].agrees and not found[4].why_left_out
    assert found[1].gold["ArrivalLocation"].values == ("Market",)  # the user took up the instruction
    assert found[1].verdicts["ArrivalLocation"] == "clerk" and "Market" in found[1].goal
    assert found[2].verdicts["DepartureLocation"] == "clerk" and not found[2].why_left_out
    assert found[3].why_left_out == "the user went another way: DepartureLocation"
    assert found[6].agrees and found[6].gold["CustomerRequest"].in_own_words


@pytest.mark.parametrize(
    ("api", "goal", "wanted"),
    [
        ("plane_search", "for a flight between A to B for May 3rd. Your flight should cost no more than 178.",
         {"DepartureCity": ["A"], "ArrivalCity": ["B"], "Date": ["3rd"], "Price": ["178"]}),
        ("party_rsvp", "The host is Ann and the venue is Hall. You will be arriving at 2 pm and will bring 2 guests.",
         {"HostName": ["Ann"], "Name": ["Hall"], "ArrivalTime": ["2 pm"], "NumberGuests": ["2", "3"]}),
        ("meeting_schedule", "a two-hour meeting with Bob for Monday at 11 am. you can also do 3 pm on Friday.",
         {"Name": ["Bob"], "Day": ["Monday", "Friday"], "StartTimeHour": ["11 am", "3 pm"],
          "EndTimeHour": ["1 pm", "5 pm"]}),
        ("apartment_schedule", "You have not paid the application fee.", {"ApplicationFeePaid": ["No"]}),
    ],
)  # fmt: skip
def test_rules_read_goals(api, goal, wanted):
    assert {slot: [*each.values] for slot, each in gold_of(api, goal, {}).items()} == wanted


@pytest.mark.parametrize(
    ("wanted", "said", "found"),
    [
        (Wanted(("2 pm",)), "2pm", "same"),
        (Wanted(("8th",)), "8", "same"),
        (Wanted(("Old Mill",)), "old  mil", "spelled"),
        (Wanted(("178",)), "at most 178", "same"),
        (Wanted(("15/09/1940",)), "09/15/1940", "spelled"),
        (Wanted(("7 pm",)), "7 am", ""),
        (Wanted(("Castle",)), "Castle or Zoo", ""),
        (Wanted(("Castle",)), None, ""),
        (Wanted(("Lyft",), unwanted=True), None, "same"),
        (Wanted(("Lyft",), unwanted=True), "lyft", ""),
        (Wanted(("I need more towels",), in_own_words=True), "towels", "same"),
    ],
)
def test_values_are_compared_as_they_are_written(wanted, said, found):
    assert wanted.compare(said) == found


def test_groups_of_people_are_disjoint(star, conversations):
    for people in ("both", "users"):
        groups = people_groups([*conversations.values()], 3, 0, people)
        assert set(Counter(groups.values())) == {1, 2, 3} and set(groups) <= set(PEOPLE)
    train, test = (Star.prepare(split, star, people="both", **ALL) for split in ("train", "test"))
    met, unmet = (
        {each.meta_data[who] for each in pool.conversations() for who in ("user", "clerk")} for pool in (train, test)
    )
    assert met and unmet and not met & unmet
    with pytest.raises(DataError, match="6 people cannot be divided into 7 groups"):
        Star.prepare("train", star, n_groups=7)
    with pytest.raises(DataError, match=r"groups \{2\} are in train and in test; nobody of test must be met"):
        Star.prepare("train", star, n_groups=2, groups={"train": [2], "test": [1, 2]})


def test_goals_of_training_are_not_those_of_other_splits(star):
    kwargs = {"n_groups": 1, "kind": "all", "held_out_share": 0.5, "groups": {"test": [1]}}
    pools = [Star.prepare(split, star, **kwargs) for split in ("train", "val")]
    goals = [{each.meta_data["partner_persona"] for each in pool.conversations()} for pool in pools]
    assert all(goals) and not goals[0] & goals[1]


def test_train_has_the_groups_that_test_has_not(star):
    def groups(split, **groups):
        share = 0.0 if split == "train" else 0.9
        pool = Star.prepare(split, star, n_groups=3, kind="all", held_out_share=share, **groups)
        return {each.meta_data["group"] for each in pool.conversations()}

    assert groups("train") <= {1, 2} and groups("train", groups={"test": [1]}) <= {2, 3}
    assert len(Star.prepare("test", star, n_groups=1, kind="all", groups={"train": [1]}))
    assert groups("val", groups={"train": [3]}) == {3} and groups("test", groups={"train": [3]}) == {1, 2}
    assert groups("val", groups={"test": [1]}) <= {2, 3} and groups("test", groups={"test": [1]}) == {1}


def test_samples_and_conversations_have_goal_call_and_reward(star):
    pool = Star.prepare("train", star, **ALL, samples="dialogues", tasks=["ride_book"])
    (dialogue, *_), (sample, _) = pool.conversations(), pool[0]
    assert sample.prompt_or_input_text.turns[0].text == dialogue.turns[0].text == "hi there"
    assert sample.meta_data["partner_persona"].startswith("You want a ride from")
    assert "Ann" in sample.meta_data["goal_values"] and json.dumps(sample.meta_data)
    assert [turn.speaker for turn in dialogue.turns[-4:]] == [AGENT, TOOL, AGENT, PARTNER]
    assert dialogue.turns[-2].reward == dialogue.outcome["right_slots"] == RightCallReward()(dialogue, over=True)
    assert RightCallReward(per_turn=-0.05)(dialogue, over=False) == -0.05
    silent = replace(
        dialogue, turns=(Turn("hi", PARTNER), Turn("call", AGENT, call=Call("hotel_book", {"Name": "Zoo"})))
    )
    assert RightCallReward()(silent, over=True) == 0.0
    without = Star.prepare("train", star, **ALL, calls=False)
    assert not any(turn.text.startswith("call ") for each in without.conversations() for turn in each.turns)
    assert all(each.outcome["success"] for each in Star.prepare("train", star, **ALL, right_only=True).conversations())


def test_users_side_has_the_goal_as_prompt(star):
    sample, _ = Star.prepare("test", star, **ALL, learn="partner", tasks=["ride_book"])[0]
    assert sample.prompt_or_input_text.startswith(sample.meta_data["partner_persona"])
    assert sample.references == ["hi there"] and sample.meta_data["continuation"][-1] == "thanks [end]"
    assert not any(text.startswith("call") for text in sample.meta_data["continuation"])
    with pytest.raises(DataError, match="the partner says 21 utterances in the train split, and at least 50"):
        Star.prepare("train", star, **ALL, learn="partner")


def test_conversations_can_end_with_the_first_call(star):
    kwargs = {**ALL, "tasks": ["ride_book"]}
    whole = {each.id: each for each in Star.prepare("train", star, **kwargs).conversations()}
    cut = [*Star.prepare("train", star, **kwargs, until_call=True).conversations()]
    assert cut and {each.id for each in cut} <= {*whole}
    for dialogue in cut:
        turns = whole[dialogue.id].turns[: len(dialogue.turns)]
        assert [turn.text for turn in dialogue.turns] == [turn.text for turn in turns]
        assert [turn.call is None for turn in dialogue.turns] == [True] * (len(turns) - 1) + [False]
        assert dialogue.turns[-1].reward == dialogue.outcome["right_slots"] == RightCallReward()(dialogue, over=True)
    of_user = Star.prepare("test", star, **kwargs, learn="partner", until_call=True)
    said = [text for sample, _ in of_user for text in [*sample.references, *sample.meta_data["continuation"]]]
    assert said and not any("[end]" in text or text.startswith("call ") for text in said)


def test_exchange_is_the_same_in_all_texts():
    schemas = [
        {"input": [{"Name": "Name", "Categories": ["Blue Inn", "Green Inn"]}]},
        {"input": [{"Name": "Name", "Categories": ["Dr. Alexis", "Dr. Johnson"]}]},
    ]
    goal = "Ben books the Blue Inn for Monday at 3 pm, from 4th to 12th, id 7402, for 26 guests, of Dr. Alexis."
    said = "it's BEN, blue inn, monday 3pm or 3:00 PM; 4th, 7402 and 26. $500, 2 beds, dr. alexis"
    changed = set()
    for seed in range(20):
        exchange = Exchange(schemas, random.Random(seed))
        ours, theirs = exchange([goal, said])
        pattern = (
            r"(\w+) books the (\w+) Inn for (\w+) at (\d+) pm, from (\d+)(?:st|nd|rd|th) to \d+(?:st|nd|rd|th), "
            r"id (\d{4}), for (\d\d) guests, of Dr. Alexis."
        )
        name, inn, day, hour, first, id, guests = re.fullmatch(pattern, ours).groups()
        assert inn in ("Blue", "Green") and day.endswith("day") and 1 <= int(hour) <= 12 and 1 <= int(first) <= 31
        assert theirs == (
            f"it's {name}, {inn.lower()} inn, {day.lower()} {hour}pm or {hour}:00 PM; {ordinal(int(first))}, "
            f"{id} and {guests}. $500, 2 beds, dr. alexis"
        )
        changed |= {name, inn, day, hour, id}
        assert Exchange(schemas, random.Random(seed))(goal) == ours
    assert len(changed) > 30
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th"]
    )


def test_copies_with_exchanged_values_have_their_own_goals_and_right_calls(star):
    args = {**ALL, "held_out_share": 0.4}
    plain, held_out = (Star.prepare(split, star, **args) for split in ("train", "val"))
    found = Star.prepare("train", star, **args, exchanged=8)
    copies = [sample for sample, _ in found if "_copy_" in str(sample.id)]
    assert len(plain) < len(found) <= 9 * len(plain) and len(Star.prepare("val", star, **args, exchanged=8)) == len(
        held_out
    )
    assert len({sample.id for sample, _ in found}) == len(found)
    goals = {sample.meta_data["partner_persona"] for sample in copies}
    assert goals.isdisjoint(sample.meta_data["partner_persona"] for sample, _ in held_out) and len(goals) > 3
    for sample in copies:
        said = " ".join([*sample.meta_data["history"], *sample.references])
        assert sample.meta_data["user"] in PEOPLE and sample.meta_data["goal_values"]
        if said.startswith("call") or " call " in said:
            assert any(value in said for value in sample.meta_data["goal_values"])


def test_tool_answers_as_the_knowledge_base_did(star, tmp_path):
    tool = pickle.loads(pickle.dumps(StarApis(str(star))))
    tool.reset({}, 0)
    assert tool.functions["ride_book"]["ServiceProvider"].kind == ("Uber", "Lyft")
    assert (
        tool.functions["hotel_book"]["Name"].required and not tool.functions["hotel_book"]["CustomerRequest"].required
    )
    asked = {"CustomerName": "Ann", "DepartureLocation": "Zoo", "ArrivalLocation": "Hill", "RequestType": "Book"}
    assert tool.call("ride_book", asked) == "Message=It is free."
    with pytest.raises(DataError, match="no conversations of STAR"):
        StarApis(str(tmp_path))
    assert StarApis(pool_args={"path": str(star)}).functions == tool.functions


def test_prepare_downloads_what_datapool_and_tool_read(star, tmp_path, monkeypatch):
    def stream(method, url, **settings):
        found = httpx.Response(200, content=archive.read_bytes()) if archive.exists() else httpx.Response(404)
        return httpx.Client(transport=httpx.MockTransport(lambda request: found), **settings).stream(method, url)

    archive = tmp_path / "archive.zip"
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(httpx, "stream", stream)
    with pytest.raises(DataError, match=r"star is not in the cache; run this first: rl4dialog prepare star"):
        Star.prepare("train", **ALL)
    with pytest.raises(DataError, match=r"RasaHQ/STAR\S* cannot be downloaded.*rl4dialog prepare star --path FOLDER"):
        prepare_dataset("star")
    shutil.copytree(star, tmp_path / "STAR-HEAD")
    shutil.make_archive(str(archive.with_suffix("")), "zip", tmp_path, "STAR-HEAD")
    assert "star: 12 conversations of 6 users, 2 APIs" in prepare_dataset("star")
    assert len(Star.prepare("train", **ALL)) == len(Star.prepare("train", star, **ALL))
    assert StarApis().functions == StarApis(str(star)).functions
    assert "12 conversations" in prepare_dataset("star", star)


def test_wrong_data_is_named(star, tmp_path):
    with pytest.raises(DataError, match="no conversations of STAR"):
        Star.prepare("train", tmp_path)
    with pytest.raises(DataError, match="no conversation is about 'ride_bok'; did you mean 'ride_book'"):
        Star.prepare("train", star, tasks=["ride_bok"])
    (tmp_path / "dialogues").mkdir()
    (tmp_path / "dialogues" / "1.json").write_text("{}")
    with pytest.raises(DataError, match=r"1.json is not a conversation of STAR: KeyError"):
        Star.prepare("train", tmp_path)
    assert set(APIS) == set(read_apis(star))
