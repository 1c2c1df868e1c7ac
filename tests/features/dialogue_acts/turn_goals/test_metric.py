"""Goals of single turns by hand."""

import math

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.features.dialogue_acts.turn_goals import metric


def scores(texts, infos, **args):
    found = metric.GoalFollowedMetric(**args).compute([""] * len(texts), texts, [[]] * len(texts), infos)
    return found["goal_followed"]


def test_share_is_of_the_replies_with_a_goal():
    texts = ["do you have a pet ?", "what do you drink ?", "how interesting .", "hello ."]
    each, share = scores(texts, [{"goal": goal} for goal in ("pet", "pet", "small_talk", None)])
    assert each[:3] == [1.0, 0.0, 1.0] and math.isnan(each[3]) and share == 2 / 3


def test_other_goals_are_those_of_their_set():
    info = {"goal": "ask about pets."}
    assert scores(["i walk my dog ."], [info], goals="convogym")[1] == 1.0
    with pytest.raises(DataError, match=r"has the goal 'ask about pets.', not one of work, pet"):
        scores(["i walk my dog ."], [info])
    with pytest.raises(DataError, match="goals_in_prompt: true; one has only history"):
        scores(["a"], [{"history": []}])
