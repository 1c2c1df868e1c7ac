"""Dialogues of a task as samples, and the user as partner of a language model."""

import pickle
from functools import cache

import pytest
from worlds import tiny_world

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import PartnerReply
from rl4dialog.features.dialogue_acts.tasks.dialogue import Lexicalizer, RulePolicy
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.ontology import Database
from rl4dialog.features.dialogue_acts.tasks.placeholders import with_placeholders
from rl4dialog.features.dialogue_acts.tasks.text_task import AgendaUserPartner, TaskDialogues
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide
from rl4dialog.features.dialogue_acts.tasks.world import CorpusDialogue, CorpusTurn, make_world


@cache
def town():
    return town_guide(n_dialogues=40)


def samples(split, **arguments):
    return [sample for sample, _ in TaskDialogues.prepare(split, town, **arguments)]


def test_each_goal_is_a_sample_with_the_whole_dialogue():
    found = samples("train")
    assert [sample.meta_data["goal"] for sample in found] == [goal.to_json() for goal in town().goals["train"]]
    for sample in found:
        (first,) = sample.meta_data["history"]
        assert sample.prompt_or_input_text == f"{first} <EOU>"
        assert len(sample.meta_data["continuation"]) % 2 == 0, "the agent's reply is the last utterance"
        for text in (first, *sample.meta_data["continuation"][::2]):
            assert " | " in text
        for reply in (*sample.references, *sample.meta_data["continuation"][1::2]):
            assert " | " not in reply and "  " not in reply


def test_replies_of_the_corpus_reach_the_goal():
    n_same = n_successes = 0
    for number, sample in enumerate(samples("train")):
        partner = AgendaUserPartner(town)
        partner.reset(sample.meta_data, number)
        assert partner.secret() == sample.meta_data["goal_text"]
        partner.open()
        answers = [partner.reply([reply]) for reply in (*sample.references, *sample.meta_data["continuation"][1::2])]
        n_same += [a.text for a in answers[:-1]] == sample.meta_data["continuation"][::2]
        n_successes += partner.outcome()["success"] == 1
    assert n_successes >= n_same > 0


def test_goals_are_repeated_up_to_the_size():
    own = samples("test")
    found = samples("test", n_test=len(own) + 2)
    assert [sample.id for sample in found[len(own) :]] == [f"{own[0].id}_2", f"{own[1].id}_2"]
    assert [sample.meta_data for sample in found[len(own) :]] == [sample.meta_data for sample in own[:2]]
    assert [sample.id for sample in samples("test", n_test=3)] == [sample.id for sample in own[:3]]
    assert len(samples("train", n_test=3)) == len(town().goals["train"])


def test_corpus_without_words_gets_those_of_templates():
    (first, *_) = TaskDialogues.prepare("train", tiny_world)
    assert first[0].references == ["There is a restaurant called [restaurant_name]."]


def test_empty_database_is_an_error():
    tiny = tiny_world()
    entities = {name: tiny.database.entities(name) for name in ("restaurant", "taxi")}
    with pytest.raises(DataError, match="hungry: the database is empty in the domain 'train', which goals are about"):
        make_world("hungry", Database(tiny.ontology, entities), tiny.dialogues)


def test_dialogues_in_which_the_agent_says_nothing_are_an_error():
    tiny = tiny_world()
    silent = {
        split: [CorpusDialogue(d.id, (CorpusTurn(d.turns[0].user, ()),), d.goal) for d in each]
        for split, each in tiny.dialogues.items()
    }
    # The vocabulary needs some act.
    silent["train"].append(CorpusDialogue("spoken", tiny.dialogues["train"][0].turns))

    def world():
        return make_world("silent", tiny.database, silent)

    with pytest.raises(DataError, match=r"the val split of silent has no dialogue in words"):
        TaskDialogues.prepare("val", world)


@cache
def tiny():
    return tiny_world()


def begun(goal, seed=0, world=tiny, **arguments):
    found = AgendaUserPartner(world, **arguments)
    found.reset({"goal": goal.to_json()}, seed)
    return found


@pytest.mark.parametrize("error_rate", [0.0, 0.2])
def test_dialogues_in_words_equal_those_in_acts(error_rate):
    world = town()
    policy = RulePolicy(Lexicalizer(world.database), told=3, vocabulary=world.system_acts)
    env = DialogueActEnv(town_guide, {"n_dialogues": 40}, error_rate=error_rate, user={"patience": 3})
    for seed, goal in enumerate(world.goals["test"]):
        partner = begun(goal, seed, town, error_rate=error_rate, user={"patience": 3})
        partner.open()
        env.reset(seed=seed, options={"goal": goal})
        leaves = is_over = False
        while not leaves and not is_over:
            assert partner.dialogue.heard == env.dialogue.heard
            belief = partner.dialogue.belief
            acts = with_placeholders(policy.act(belief, partner.dialogue.heard), belief.active)
            leaves = partner.reply([world.templates.render(acts, "agent")]).leaves
            *_, is_over, _, info = env.step(env.rule_action())
        assert leaves == is_over
        assert partner.dialogue.exchanges[-1].bookings == env.dialogue.exchanges[-1].bookings
        assert partner.outcome()["success"] == info["outcome"]["success"]


def test_agent_reads_the_state_and_people_read_what_was_said():
    goal = tiny().goals["train"][0]
    partner = begun(goal)
    opening = partner.open()
    assert isinstance(opening, PartnerReply) and opening.text is not None
    words, state = opening.text.split(" | ")
    assert (words, opening.heard) == (opening.spoken, "")
    assert state == "restaurant: food thai, area north; 2 found"
    answer = partner.reply([opening.text, "How about [restaurant_name]? It serves [hotel_name] food."])
    assert answer.heard == "How about thai north 0? It serves [hotel_name] food."
    assert answer.spoken == "What is the phone number of the restaurant?"
    assert answer.text == f"{answer.spoken} | restaurant: food thai, area north; wants phone; offered; 2 found"
    last = partner.reply(["The number is [restaurant_phone]."])
    assert (last.heard, last.spoken, last.leaves) == ("The number is 00.", "Goodbye.", True)
    assert partner.outcome() == {
        "success": 1.0,
        "complete": 1.0,
        "match": 1.0,
        "inform_f1": 1.0,
        "acts_per_turn": 1.0,
        "placeholders_per_turn": 1.5,
        "unparsed": 0.0,
    }
    assert partner.failures() == []


def test_what_is_not_offered_is_named():
    partner = begun(tiny().goals["train"][0])
    partner.open()
    text = "There is no [restaurant_food] food in the [restaurant_area], [restaurant_food_2]."
    answer = partner.reply([text])
    assert answer.heard == "There is no thai food in the north, [restaurant_food_2]."


def test_replies_that_say_nothing_are_counted_and_end_in_failure():
    partner = begun(tiny().goals["train"][0], user={"patience": 3})
    partner.open()
    leaves = [partner.reply(["ba ba [ba]"]).leaves for _ in range(3)]
    assert leaves == [False, False, True], "it asks twice"
    assert partner.outcome()["unparsed"] == 1
    assert partner.outcome()["success"] == 0
    assert partner.failures() == [
        "no restaurant offered",
        "restaurant: phone not told",
        "the agent repeated itself",
        "the user gave up",
    ]


def test_of_many_acts_only_some_are_heard():
    everything = " ".join(f"[restaurant_{slot}]" for slot in ("name", "name_2", "food", "area", "phone", "choice"))
    for limit, expected in ((2, 2), (None, min(6, tiny().max_system_acts))):
        partner = begun(tiny().goals["train"][0], max_system_acts=limit)
        partner.open()
        partner.reply([everything])
        assert partner.outcome()["acts_per_turn"] == expected
        assert partner.outcome()["placeholders_per_turn"] == 6


def test_the_same_seed_gives_the_same_dialogue_also_in_another_process():
    def answers(partner):
        partner.reset({"goal": tiny().goals["train"][3].to_json()}, 7)
        return [partner.open(), *(partner.reply(["[restaurant_name] [restaurant_phone]"]) for _ in range(4))]

    partner = AgendaUserPartner(tiny_world, error_rate=0.3)
    sent = pickle.loads(pickle.dumps(partner))
    assert len(pickle.dumps(partner)) < 1000, "no world is sent"
    assert answers(partner) == answers(sent) == answers(partner)


@pytest.mark.parametrize(
    "meta_data",
    [{}, {"goal": None}, {"goal": {"domains": {"hotel": {}}}}, {"goal": {"domains": {"taxi": {}}}, "world": "another"}],
)
def test_sample_without_a_goal_of_this_world_is_an_error(meta_data):
    with pytest.raises(DataError, match="goal"):
        AgendaUserPartner(tiny).reset(meta_data, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error_rate": 1.5}, r"agenda_user.*error_rate"),
        ({"user": {"patients": 3}}, r"agenda_user.*patients"),
        ({"user": {"patience": "long"}}, r"agenda_user.*patience"),
        ({"max_system_acts": 0}, r"agenda_user.*max_system_acts"),
    ],
)
def test_wrong_arguments_are_errors_before_any_dialogue(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PartnerRegistry.check("agenda_user", arguments)
