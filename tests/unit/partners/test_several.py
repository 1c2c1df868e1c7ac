"""Several partners: their names, how often each is drawn, and that the failure of one is not that of another."""

from collections import Counter

import numpy as np
import pytest
from partners import RulesService
from tiny import make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.conversation import OneOf
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.partners.several import SeveralPartners, names_of
from rl4dialog.rollouts.conversing import FAILED_ACTION, partner_answers

BLOCKS = [{"id": "rules", "name": "strict"}, {"id": "language_model"}, {"id": "language_model"}]


def test_names_are_given_or_those_of_the_ids():
    assert names_of(BLOCKS) == ["strict", "language_model_1", "language_model_2"]
    with pytest.raises(ConfigError, match="same name"):
        names_of([{"id": "rules", "name": "a"}, {"id": "facts", "name": "a"}])


@pytest.mark.parametrize(("weights", "expected"), [((1.0, 1.0), 0.5), ((3.0, 1.0), 0.75)])
def test_conversations_draw_a_partner_by_weight_and_seed(weights, expected):
    partners = OneOf(("a", "b"), weights, [ScriptedPartner(["x"]), ScriptedPartner(["y"])])
    drawn = [partners.drawn(seed) for seed in range(2000)]
    assert drawn == [partners.drawn(seed) for seed in range(2000)]
    assert abs(Counter(drawn)[0] / 2000 - expected) < 0.03


def test_as_many_weights_as_partners():
    with pytest.raises(ConfigError, match="3 partners need as many weights, not 1"):
        SeveralPartners(BLOCKS, [1.0])


def test_partner_that_learns_cannot_be_one_of_several():
    partner = RulesService([{"pattern": "x", "replies": "y"}], tokenizer=make_tokenizer(marker="<EOU>"))
    partner.learns = True
    with pytest.raises(ConfigError, match="language_model_1 cannot learn"):
        SeveralPartners(BLOCKS, built=[ScriptedPartner(["x"]), partner, partner])


def test_each_partner_answers_its_conversations_in_one_batch_and_fails_alone():
    tokenizer = make_tokenizer(marker="<EOU>")

    def service(said, **kwargs):
        return RulesService([{"pattern": ".", "replies": said}], tokenizer=tokenizer, **kwargs)

    def broken(found):
        raise ZeroDivisionError("gone")

    first, second = service("w3"), service("w4", broken=broken)
    several = SeveralPartners(BLOCKS, built=[ScriptedPartner(["x"]), first, second])
    prompts = np.array([[tokenizer.convert_tokens_to_ids(token) for token in ("w1", "<EOU>")]] * 4)
    asked = {"prompt_ids": prompts, "prompt_mask": np.ones_like(prompts), "partner": np.array([2, 1, 2, 1])}
    answers, failures = partner_answers(several, asked)
    assert [tokenizer.decode(answers[i]) for i in (1, 3)] == ["w3 <EOU>"] * 2 and len(first.seen) == 2
    assert [answers[i] for i in (0, 2)] == [[FAILED_ACTION]] * 2 and sorted(failures) == [0, 2]
