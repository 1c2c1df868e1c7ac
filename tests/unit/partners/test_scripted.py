"""Partners without a model, also in environment workers."""

import copy
import pickle

import pytest
from feature_rows import rows_of_features

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply


def test_lines_are_said_in_order_and_then_it_leaves():
    partner = PartnerRegistry.get("scripted", {"replies": ["and then ?", "i see ."]})
    for _ in range(2):
        partner.reset({"partner_replies": ["not this"]}, seed=0)
        assert [partner.reply(["hi"]) for _ in range(4)] == ["and then ?", "i see .", None, None]


def test_lines_of_the_sample_are_the_default():
    partner = PartnerRegistry.get("scripted")
    for lines in (["a", "b"], ["c"], []):
        partner.reset({"partner_replies": lines}, seed=0)
        assert [partner.reply(["hi"]) for _ in range(3)] == [*lines, None, None, None][:3]


def test_partners_with_a_task_tell_a_person_in_their_place_what_they_do():
    partners = {id: PartnerRegistry.resolve(id) for id in PartnerRegistry.ids()}
    with_task = {id: partner for id, partner in partners.items() if issubclass(partner, Partner) and partner.outcomes}
    assert {"guess_what", "table_booking"} <= with_task.keys()
    assert [id for id, partner in with_task.items() if not partner.role] == []


A1 = {"references": ["a1"], "labels": {}}


@pytest.mark.parametrize(
    ("continuation", "replies"),
    [
        ([], [PartnerReply(leaves=True)]),
        (["p1"], [PartnerReply("p1", leaves=True), PartnerReply(leaves=True)]),
        (["p1", "a1"], [PartnerReply("p1", info=A1), PartnerReply(leaves=True)]),
        (["p1", "a1", "p2"], [PartnerReply("p1", info=A1), PartnerReply("p2", leaves=True)]),
    ],
)
def test_references_follow_the_turn_until_the_dialogue_ends(continuation, replies):
    partner = PartnerRegistry.get("replay")
    assert partner.gives_references
    for _ in range(2):
        partner.reset({"continuation": continuation}, seed=0)
        assert [partner.reply(["whatever"]) for _ in replies] == replies


def test_labels_follow_the_turn_too():
    partner = PartnerRegistry.get("replay")
    labels = [{"intent": [1]}, {"intent": [2]}, {"intent": [3]}, {"intent": [4]}]
    partner.reset({"continuation": ["p1", "a1", "p2", "a2"], "continuation_labels": labels}, seed=0)
    assert [partner.reply([]).info["labels"] for _ in range(2)] == [{"intent": [2]}, {"intent": [4]}]


@pytest.mark.parametrize(
    ("id", "key", "wrong", "cure"),
    [
        ("scripted", "partner_replies", ["hello", ["a", 1]], "set the argument replies"),
        ("replay", "continuation", [None, "hello"], r"args\.samples: dialogues"),
        ("facts", "partner_persona", [[], "a dog"], "both_original"),
    ],
)
def test_sample_without_its_texts_is_an_error(id, key, wrong, cure):
    for meta_info in ({}, *({key: value} for value in wrong)):
        with pytest.raises(DataError, match=rf"'{id}' needs .*meta_data\['{key}'\].*{cure}"):
            PartnerRegistry.get(id).reset(meta_info, seed=0)


FACTS = ["i have two dogs .", "my favorite music is country .", "i don't like country food .", "i work on cars ."]


@pytest.mark.parametrize(
    ("utterance", "answer"),
    [
        ("do you have a DOG ?", FACTS[0]),
        ("what music do you like ?", FACTS[1]),
        ("country ?", FACTS[1]),  # the first of two
        ("is there food in your country ?", FACTS[2]),  # two words
        ("do you have a favorite thing ?", "nothing special ."),  # function words only
        ("i don't know , do you ?", "nothing special ."),
        ("i love dogs .", "nothing special ."),  # no question
        ("", "nothing special ."),
    ],
)
def test_best_fact_answers_a_question(utterance, answer):
    partner = PartnerRegistry.get("facts")
    partner.reset({"persona": ["i am another ."], "partner_persona": FACTS}, seed=0)
    assert [partner.reply(["what food ?", utterance]) for _ in range(2)] == [answer, answer]


def test_key_and_other_answer_can_be_set():
    partner = PartnerRegistry.get("facts", {"persona_key": "persona", "otherwise": "hm ."})
    partner.reset({"persona": FACTS}, seed=0)
    assert partner.reply(["cars ?"]) == FACTS[3] and partner.reply(["boats ?"]) == "hm ."
    partner.reset({"persona": ["i own a boat ."]}, seed=0)
    assert partner.reply(["cars ?"]) == "hm ." and partner.reply(["boats ?"]) == "i own a boat ."


def make_partner(*rules, seed=0, **args):
    partner = PartnerRegistry.get("rules", {"rules": [*rules], **args})
    partner.reset({}, seed)
    return partner


def test_first_rule_that_matches_decides():
    partner = make_partner(
        {"pattern": "^bye", "replies": "see you !", "leaves": True},
        {"pattern": "tea|coffee", "replies": ["with milk ?"], "reward": 0.5},
        {"pattern": "coffee", "replies": "never"},
    )
    assert partner.reply(["coffee", "Bye, coffee !"]) == PartnerReply("see you !", leaves=True)
    assert partner.reply(["bye", "more Coffee ?"]) == PartnerReply("with milk ?", reward=0.5)


def test_without_a_match_it_says_what_is_set_or_nothing():
    rule = {"pattern": "tea", "replies": "yes"}
    assert make_partner(rule).reply(["juice ?"]) == PartnerReply(None)
    assert make_partner(rule, otherwise="go on .").reply(["juice ?"]) == PartnerReply("go on .")
    assert make_partner(rule, otherwise=["{1} {"]).reply([""]) == PartnerReply("{1} {"), "has no groups to insert"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("why do you like {1} ?", "why do you like tea ?"),
        ("{name}, {name} !", "tea, tea !"),
        ("{0}: {2}.", "i like tea: ."),
        ("{{name}} } { {}", "{name} } { {}"),
        (r"\1 \g<name>", r"\1 \g<name>"),
    ],
)
def test_groups_of_the_match_are_inserted(reply, said):
    partner = make_partner({"pattern": r"i like (?P<name>\w+)( a lot)?", "replies": reply})
    assert partner.reply(["I know, i like tea ."]).text == said


def test_what_the_agent_said_is_no_template():
    assert make_partner({"pattern": "(.+)", "replies": "{1} ?"}).reply([r"{1} \1 {0.__class__}"]).text == (
        r"{1} \1 {0.__class__} ?"
    )


def test_seed_of_the_conversation_decides_what_is_said():
    def conversation(partner, seed):
        partner.reset({}, seed)
        return [partner.open(), *(partner.reply(["a"]).text for _ in range(10)), partner.reply(["b"]).text]

    texts = list("uvwxyz")
    partner = make_partner({"pattern": "a", "replies": texts}, otherwise=texts, opening=texts)
    first = conversation(partner, 1)
    assert set(first) <= set(texts) and len(set(first)) > 2
    assert conversation(partner, 2) != first
    assert conversation(partner, 1) == first
    assert conversation(pickle.loads(pickle.dumps(copy.deepcopy(partner))), 1) == first


def test_abilities_follow_from_the_arguments():
    silent, opens = make_partner({"pattern": "a", "reward": 0}), make_partner({"pattern": "a"}, opening="hi !")
    assert not silent.can_open and not silent.pays
    assert opens.can_open and opens.open() == "hi !"
    assert make_partner({"pattern": "a"}, {"pattern": "b", "reward": -1}).pays


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, r"rules: .*needs the argument 'rules'"),
        ({"rules": []}, r"rules: .*at least 1 item"),
        ({"rules": "hello"}, r"rules: .*got 'hello'"),
        ({"rules": ["hello"]}, r"rules\[0\]: .*should be an object, got 'hello'"),
        ({"rules": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "c("}]}, r"rules\[2\]\.pattern: .*got 'c\('"),
        ({"rules": [{"pattern": "a{99999999999}"}]}, r"rules\[0\]\.pattern: .*repetition number is too large"),
        ({"rules": [{"pattern": 3}]}, r"rules\[0\]\.pattern: .*string, got 3"),
        ({"rules": [{"pattern": "a"}, {"patern": "b"}]}, r"rules\[1\]\.patern: unknown key; did you mean 'pattern'"),
        ({"rules": [{"replies": "b"}]}, r"rules\[0\]: the key 'pattern' is missing"),
        ({"rules": [{"pattern": "a", "replies": []}]}, r"rules\[0\]\.replies: .*at least 1 item"),
        ({"rules": [{"pattern": "a", "replies": ["b", 4]}]}, r"rules\[0\]\.replies\[1\]: .*string, got 4"),
        ({"rules": [{"pattern": "a", "replies": "{1}"}]}, r"rules\[0\]: replies insert \{1\}, .*no such group"),
        ({"rules": [{"pattern": "(?P<x>a)", "replies": ["", "{y}"]}]}, r"rules\[0\]: replies insert \{y\}"),
        ({"rules": [{"pattern": "a", "leaves": 1}]}, r"rules\[0\]\.leaves: .*boolean, got 1"),
        ({"rules": [{"pattern": "a", "reward": float("nan")}]}, r"rules\[0\]\.reward: .*finite number"),
        ({"rules": [{"pattern": "a"}], "otherwise": []}, r"otherwise: .*at least 1 item"),
        ({"rules": [{"pattern": "a"}], "opening": 1}, r"opening: .*got 1"),
    ],
)
def test_mistakes_in_rules_are_named_by_their_place(args, message):
    with pytest.raises(ConfigError, match=rf"^env\.args\.partner\.args\.{message}"):
        PartnerRegistry.check("rules", args, "env.args.partner.args")


@pytest.mark.parametrize("patterns", [["a", "b", "a"], ["", "b"], ["(?s:.)", "b"], ["b", ""]])
def test_rule_that_never_decides_is_refused(patterns):
    with pytest.raises(ConfigError, match=r"(listed twice|matches every text), so rules after it"):
        make_partner(*({"pattern": pattern, "replies": "x"} for pattern in patterns))


ARGS = {"facts": {}, "replay": {}, "rules": {"rules": [{"pattern": "dog", "replies": list("abcdef")}]}, "scripted": {}}
META_INFO = {"partner_persona": ["i own a dog ."], "continuation": ["p", "a", "p", "a"], "partner_replies": ["x", "y"]}


@pytest.mark.parametrize("id", sorted(ARGS))
def test_copies_continue_a_conversation_independently(id):
    partner = PartnerRegistry.get(id, ARGS[id])
    partner.reset(META_INFO, 3)
    partner.reply(["a dog ?"])
    copies = [copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))]
    answers = [[one.reply(["a dog ?"]) for _ in range(3)] for one in (partner, *copies)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("id", "args", "meta_info", "secret"),
    [
        ("facts", {}, {"partner_persona": ["i own a dog .", "i sing ."]}, "i own a dog . i sing ."),
        ("guess_what", {}, {"thing": "apple"}, "apple"),
        ("table_booking", {}, {"goal_text": "Friday, 7 pm, 4 people, outside"}, "Friday, 7 pm, 4 people, outside"),
        *rows_of_features("SECRETS"),
        ("scripted", {}, META_INFO, ""),
    ],
)
def test_secret_is_what_the_partner_knows_from_the_start(id, args, meta_info, secret):
    partner = PartnerRegistry.get(id, args)
    partner.reset(meta_info, 3)
    told = partner.secret()
    partner.reply(["is it an apple ?"])
    assert told == partner.secret() and (told == secret or (secret is None and len(told.split()) > 6))
