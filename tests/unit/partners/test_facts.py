"""The partner that answers questions about itself."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError

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
def test_best_fact_answers_a_question(utterance: str, answer: str) -> None:
    partner = PartnerRegistry.get("facts")
    partner.reset({"persona": ["i am another ."], "partner_persona": FACTS}, seed=0)
    assert [partner.reply(["what food ?", utterance]) for _ in range(2)] == [answer, answer]


def test_key_and_other_answer_can_be_set() -> None:
    partner = PartnerRegistry.get("facts", {"persona_key": "persona", "otherwise": "hm ."})
    partner.reset({"persona": FACTS}, seed=0)
    assert partner.reply(["cars ?"]) == FACTS[3] and partner.reply(["boats ?"]) == "hm ."
    partner.reset({"persona": ["i own a boat ."]}, seed=0)
    assert partner.reply(["cars ?"]) == "hm ." and partner.reply(["boats ?"]) == "i own a boat ."


@pytest.mark.parametrize("meta_info", [{}, {"partner_persona": []}, {"partner_persona": "a dog"}])
def test_sample_without_facts_is_an_error(meta_info: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"'facts' needs .*meta_data\['partner_persona'\].*both_original"):
        PartnerRegistry.get("facts").reset(meta_info, seed=0)
