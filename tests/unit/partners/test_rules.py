"""The partner that follows rules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import PartnerReply
from rl4dialog.partners.scripted import RulesPartner


def make_partner(*rules: dict[str, Any], seed: int = 0, **args: Any) -> RulesPartner:
    partner: RulesPartner = PartnerRegistry.get("rules", {"rules": [*rules], **args})
    partner.reset({}, seed)
    return partner


def test_first_rule_that_matches_decides() -> None:
    partner = make_partner(
        {"pattern": "^bye", "replies": "see you !", "leaves": True},
        {"pattern": "tea|coffee", "replies": ["with milk ?"], "reward": 0.5},
        {"pattern": "coffee", "replies": "never"},
    )
    assert partner.reply(["coffee", "Bye, coffee !"]) == PartnerReply("see you !", leaves=True)
    assert partner.reply(["bye", "more Coffee ?"]) == PartnerReply("with milk ?", reward=0.5)


def test_without_a_match_it_says_what_is_set_or_nothing() -> None:
    rule = {"pattern": "tea", "replies": "yes"}
    assert make_partner(rule).reply(["juice ?"]) == PartnerReply(None)
    assert make_partner(rule, otherwise="go on .").reply(["juice ?"]) == PartnerReply("go on .")
    assert make_partner(rule, otherwise=["{1} {"]).reply([""]) == PartnerReply("{1} {"), "has no groups to insert"


def test_rule_without_replies_says_nothing() -> None:
    assert make_partner({"pattern": "x", "leaves": True}).reply(["x"]) == PartnerReply(None, leaves=True)


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
def test_groups_of_the_match_are_inserted(reply: str, said: str) -> None:
    partner = make_partner({"pattern": r"i like (?P<name>\w+)( a lot)?", "replies": reply})
    assert partner.reply(["I know, i like tea ."]).text == said


def test_what_the_agent_said_is_no_template() -> None:
    assert make_partner({"pattern": "(.+)", "replies": "{1} ?"}).reply([r"{1} \1 {0.__class__}"]).text == (
        r"{1} \1 {0.__class__} ?"
    )


def test_seed_of_the_conversation_decides_what_is_said() -> None:
    def conversation(partner: RulesPartner, seed: int) -> list[str | None]:
        partner.reset({}, seed)
        return [partner.open(), *(partner.reply(["a"]).text for _ in range(10)), partner.reply(["b"]).text]

    texts = list("uvwxyz")
    partner = make_partner({"pattern": "a", "replies": texts}, otherwise=texts, opening=texts)
    first = conversation(partner, 1)
    assert set(first) <= set(texts) and len(set(first)) > 2
    assert conversation(partner, 2) != first
    assert conversation(partner, 1) == first
    assert conversation(pickle.loads(pickle.dumps(copy.deepcopy(partner))), 1) == first


def test_abilities_follow_from_the_arguments() -> None:
    silent, opens = make_partner({"pattern": "a", "reward": 0}), make_partner({"pattern": "a"}, opening="hi !")
    assert not silent.can_open and not silent.pays
    assert opens.can_open and opens.open() == "hi !"
    assert make_partner({"pattern": "a"}, {"pattern": "b", "reward": -1}).pays


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, r"args\.rules: .*needs the argument 'rules'"),
        ({"rules": []}, r"args\.rules: .*at least 1 item"),
        ({"rules": "hello"}, r"args\.rules: .*got 'hello'"),
        ({"rules": ["hello"]}, r"args\.rules\[0\]: .*should be an object, got 'hello'"),
        (
            {"rules": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "c("}]},
            r"args\.rules\[2\]\.pattern: .*regular expression.*: missing \), unterminated subpattern.*got 'c\('",
        ),
        ({"rules": [{"pattern": "a{99999999999}"}]}, r"args\.rules\[0\]\.pattern: .*repetition number is too large"),
        ({"rules": [{"pattern": 3}]}, r"args\.rules\[0\]\.pattern: .*string, got 3"),
        (
            {"rules": [{"pattern": "a"}, {"patern": "b"}]},
            r"args\.rules\[1\]: unknown key 'patern'; did you mean 'pattern'",
        ),
        ({"rules": [{"replies": "b"}]}, r"args\.rules\[0\]: a rule needs the key 'pattern'"),
        ({"rules": [{"pattern": "a", "replies": []}]}, r"args\.rules\[0\]\.replies: .*at least 1 item"),
        ({"rules": [{"pattern": "a", "replies": ["b", 4]}]}, r"args\.rules\[0\]\.replies\[1\]: .*string, got 4"),
        ({"rules": [{"pattern": "a", "replies": "{1}"}]}, r"args\.rules\[0\]: replies insert \{1\}, .*no such group"),
        ({"rules": [{"pattern": "(?P<x>a)", "replies": ["", "{y}"]}]}, r"args\.rules\[0\]: replies insert \{y\}"),
        ({"rules": [{"pattern": "a", "leaves": 1}]}, r"args\.rules\[0\]\.leaves: .*boolean, got 1"),
        ({"rules": [{"pattern": "a", "reward": float("nan")}]}, r"args\.rules\[0\]\.reward: .*finite number"),
        ({"rules": [{"pattern": "a"}], "otherwise": []}, r"args\.otherwise: .*at least 1 item"),
        ({"rules": [{"pattern": "a"}], "opening": 1}, r"args\.opening: .*got 1"),
    ],
)
def test_mistakes_in_rules_are_named_by_their_place(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^env\.args\.partner\.{message}"):
        PartnerRegistry.check("rules", args, "env.args.partner.args")


@pytest.mark.parametrize("patterns", [["a", "b", "a"], ["", "b"]])
def test_rule_that_never_decides_is_refused(patterns: list[str]) -> None:
    with pytest.raises(ConfigError, match="a pattern is empty or listed twice"):
        make_partner(*({"pattern": pattern, "replies": "x"} for pattern in patterns))
