"""The utility of a simulated person, and its choices."""

import math

import pytest
from feedback_loop import UTILITY_REWARD

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.features.feedback.simulated_person import SimulatedPerson, small_talk_feedback, utility

GOOD, POOR = "what do you want to do next saturday?", "i am at home on friday and sunday."


def test_utility_rewards_questions_of_eight_words():
    assert utility(GOOD) == pytest.approx(2.0) and utility(POOR) == pytest.approx(0.0)
    assert utility("why?") == pytest.approx(2.0 - 1.4)


@pytest.mark.parametrize("reply", [GOOD, POOR, "why?", "", "one two three four five six seven eight nine ten?"])
def test_utility_as_a_reward(reply):
    reward = RewardFunctionRegistry.get(UTILITY_REWARD["id"], UTILITY_REWARD["args"])
    assert reward(["hello"], [reply], [[""]], [True]) == pytest.approx([utility(reply)])


def test_choices_follow_bradley_and_terry_with_errors():
    person = SimulatedPerson(temperature=2.0, error_rate=0.1)
    share = sum(person.prefers_first(GOOD, POOR) for _ in range(4000)) / 4000
    p = 1 / (1 + math.exp(-1))
    assert share == pytest.approx(0.9 * p + 0.1 * (1 - p), abs=0.03)


def test_person_without_noise_is_always_right():
    person = SimulatedPerson(temperature=0.0, error_rate=0.0)
    for each in small_talk_feedback(60, person):
        texts = [reply.text for reply in each.replies]
        if each.chosen is not None and utility(texts[0]) != utility(texts[1]):
            assert texts[each.chosen] == max(texts, key=utility)
        if each.correction is not None:
            assert utility(each.correction) >= utility(texts[0]) and each.correction != texts[0]
        if each.rating is not None:
            assert (each.rating == 1) == (utility(texts[0]) > 0.5)
