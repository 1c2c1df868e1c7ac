"""The reader of MultiWOZ."""

from pathlib import Path

import numpy as np
import pytest
from multiwoz_files import ATTRACTION, HOTEL, TAXI, TRAIN, dialogue, log, write_multiwoz

from rl4dialog.core.errors import DataError
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser
from rl4dialog.features.dialogue_acts.tasks.dialogue import RulePolicy
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.multiwoz import multiwoz
from rl4dialog.features.dialogue_acts.tasks.vectorizer import ActVectorizer


def read(tmp_path, vocabulary="data", **splits):
    splits = {"train": {"T1": dialogue(hotel=HOTEL, train=TRAIN)}, "val": {"V1": dialogue(taxi=TAXI)}, **splits}
    return multiwoz(write_multiwoz(tmp_path / "data", **splits), min_count=1, vocabulary=vocabulary)


def test_acts_have_the_names_of_the_database(tmp_path):
    first, second = read(tmp_path).dialogues["train"][0].turns
    assert [str(act) for act in first.user] == [
        "train-inform(destination=ely)", "train-inform(arriveBy=12:00)", "train-request(duration)",
    ]  # fmt: skip
    assert [str(act) for act in first.system] == [
        "train-inform(trainID=tr0001)", "train-inform(duration=17 minutes)", "general-reqmore()",
    ]  # fmt: skip
    assert [str(act) for act in second.system] == [
        "booking-book(ref=AB12)", "hotel-select()", "hotel-inform(pricerange=cheap)",
    ]  # fmt: skip


def test_goals_are_those_of_the_file_in_the_order_of_the_dialogue(tmp_path):
    goal = read(tmp_path).goals["train"][0]
    assert list(goal.domains) == ["train", "hotel"]
    assert goal.domains["train"].requests == ("duration", "price") and goal.domains["train"].book == {"people": "3"}
    hotel = goal.domains["hotel"]
    assert hotel.fail_info == {"area": "west"} and hotel.fail_book == {"stay": "5"}
    assert hotel.book == {"people": "3", "day": "monday", "stay": "2"}
    world = read(tmp_path / "other", train={"T1": dialogue(hotel={**HOTEL, "fail_info": {"area": "north"}})})
    assert world.goals["train"][0].domains["hotel"].fail_info == {}


def test_values_are_normalized(tmp_path):
    world = read(tmp_path)
    (attraction, *_), info = world.database.entities("attraction"), world.goals["test"][0].domains["attraction"].info
    assert info == {"type": "multiple sports", "area": "dontcare"}
    assert attraction["name"] == "the field" and "location" not in attraction
    assert world.database.query("train", {"leaveAt": "09:30", "day": "monday", "arriveBy": "12:00"}) == (2,)


def test_the_taxi_comes_last_and_goes_between_the_places_of_the_dialogue(tmp_path):
    goals = {"T1": dialogue(taxi=TAXI, hotel={"info": {"area": "east"}}, train=TRAIN, attraction=ATTRACTION)}
    path = write_multiwoz(tmp_path / "data", train=goals)
    env = DialogueActEnv(multiwoz, {"path": path, "min_count": 1})
    assert list(env.world.goals["train"][0].domains) == ["train", "hotel", "attraction", "taxi"]
    lexicalizer = env.lexicalizer
    policy = RulePolicy(lexicalizer)
    user = AgendaUser(env.world.ontology, places=env.world.places)
    said = user.reset(env.world.goals["train"][0], np.random.default_rng(0))
    env.reset()
    heard = []
    while not user.is_over:
        env.dialogue.belief.hear(said)
        answer = lexicalizer.say(policy.act(env.dialogue.belief, said), env.dialogue.belief).acts
        env.dialogue.belief.say(answer)
        said = user.reply(answer)
        heard += [str(act) for act in said]
    assert user.is_complete
    assert "taxi-inform(departure=a and b)" in heard and "taxi-inform(destination=the field)" in heard


def test_two_splits_share_a_file_without_a_goal_in_common(tmp_path):
    records = {
        f"V{i}": dialogue(hotel={"info": {"area": area}, "reqt": reqt})
        for i, (area, reqt) in enumerate((area, reqt) for area in ("east", "north") for reqt in
                                         (["phone"], ["address"], ["postcode"], ["stars"], ["type"]))
    }  # fmt: skip
    world = multiwoz(write_multiwoz(tmp_path / "data", val=records), splits={"train": "val"}, min_count=1)
    assert [dialogue.id for dialogue in world.dialogues["val"]] == ["V4", "V9"]
    assert len(world.dialogues["train"]) == 8
    assert not {goal.id for goal in world.goals["train"]} & {goal.id for goal in world.goals["val"]}


def test_convlab2s_vocabulary_keeps_its_order(tmp_path):
    world = read(tmp_path, "convlab2")
    user = ["hotel-inform(area=1)", "police-request(postcode)", "general-bye()"]
    system = ["booking-book(ref=1)", "train-inform(duration=1)", "hotel-nooffer()"]
    assert [list(map(str, acts.acts)) for acts in (world.user_acts, world.system_acts)] == [user, system]


def test_convlab2s_blocks_have_53_inputs_besides_the_acts(tmp_path):
    world = read(tmp_path, "convlab2")
    vectorizer = ActVectorizer(world, "convlab2")
    layout = vectorizer.layout
    assert len(layout) == 3 + 3 + 24 + 4 + 24 + 1  # with ConvLab-2's 78 and 209 acts: 340
    assert [name for name in layout if name.startswith("convlab2_db: train")] == [
        f"convlab2_db: train: {count}" for count in ("0", "1 to 2", "3 to 5", "6 to 10", "11 to 40", "41 or more")
    ]


def test_convlab2s_blocks_describe_the_state(tmp_path):
    path = write_multiwoz(tmp_path / "data", train={"T1": dialogue(train=TRAIN)})
    env = DialogueActEnv(multiwoz, {"path": path, "vocabulary": "convlab2"}, blocks="convlab2")
    observation, _ = env.reset(seed=0)
    env.dialogue.belief.domains["train"].reference = "A"
    env.dialogue.belief.domains["train"].constraints["leaveAt"] = "23:00"
    env.dialogue.belief.domains["train"].booking["people"] = "3"
    observation, *_ = env.step(np.zeros(3, np.int8))
    layout = env._vectorizer.layout
    on = {layout[i] for i in np.flatnonzero(observation)}
    assert "convlab2_booked: train" in on and "convlab2_db: train: 0" in on and "convlab2_db: hotel: 2" in on
    slots = {name for name in on if name.startswith("convlab2_belief")}
    assert slots == {
        f"convlab2_belief: train-{slot}" for slot in ("leaveAt", "destination", "day", "arriveBy", "departure")
    }


@pytest.mark.parametrize("seed", range(5))
def test_rule_policy_reaches_the_goals_with_the_acts_of_its_vocabulary(tmp_path, seed):
    path = write_multiwoz(tmp_path / "data", train={"T1": dialogue(hotel=HOTEL, train=TRAIN)})
    names = ["Booking-Book-Ref-1", "Booking-Request-Day-?", "Hotel-NoOffer-none-none", "Train-Inform-Choice-1"]
    names += [f"Hotel-Inform-{slot}-1" for slot in ("Name", "Phone")]
    names += [f"Train-Inform-{slot}-1" for slot in ("Id", "Time", "Ticket")]
    Path(path, "sys_da_voc.txt").write_text("\n".join(names))
    env = DialogueActEnv(multiwoz, {"path": path, "vocabulary": "convlab2"}, max_system_acts=8, convlab2=True)
    vocabulary = env.world.system_acts
    policy = RulePolicy(env.lexicalizer, vocabulary=vocabulary)
    env.reset(seed=seed)
    is_over = False
    while not is_over:
        *_, is_over, _, info = env.step(vocabulary.encode(policy.act(env.dialogue.belief, env.dialogue.heard)))
    assert info["is_success"] and info["outcome"]["convlab2/success"] == info["outcome"]["convlab2/book"] == 1


def test_malformed_files_are_named_with_the_place(tmp_path):
    path = write_multiwoz(tmp_path / "data", train={"T1": dialogue(hotel=HOTEL)})
    for acts, problem in (("\n", ": the vocabulary"), ("Hotel-Inform-Area-1\nHotel-Inform", ", line 2: expected")):
        Path(path, "sys_da_voc.txt").write_text(acts)
        with pytest.raises(DataError, match=rf"sys_da_voc\.txt{problem}"):
            multiwoz(path, vocabulary="convlab2")
    with pytest.raises(DataError, match=r"train\.json: expected an object with dialogues by id"):
        read(tmp_path / "list", train=[])
    wrong = dialogue(log({}, {}, {"Hotel-Inform": [["Food", "thai"]]}, {}), hotel=HOTEL)
    with pytest.raises(DataError, match=r"train\.json, dialogue T9, turn 2: act hotel-inform\(food=thai\): unknown"):
        read(tmp_path / "acts", train={"T9": wrong})
