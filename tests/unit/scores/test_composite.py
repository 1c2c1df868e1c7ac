"""A weighted sum of rewards, and weights that change."""

import pickle

import numpy as np
import pytest

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.scores.composite import parse_weight
from rl4dialog.scores.scoring import Scorer


def first(prompt_text, gen_text, ref_texts, meta_info):
    return 2.0


class Second(BatchedRewardFunction):
    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return np.arange(len(gen_texts))


@pytest.fixture
def _registered(monkeypatch):
    monkeypatch.setitem(RewardFunctionRegistry._entries, "first", first)
    monkeypatch.setitem(RewardFunctionRegistry._entries, "second", Second)


@pytest.mark.usefixtures("_registered")
def test_composite_is_the_weighted_sum_and_keeps_its_parts_apart():
    blocks = [{"id": "first", "weight": 3}, {"id": "second"}, {"id": "first", "name": "again", "weight": -1.0}]
    composite = RewardFunctionRegistry.get("composite", {"rewards": blocks})
    assert [(part.name, part.weight) for part in composite.parts] == [("first", 3.0), ("second", 1.0), ("again", -1.0)]
    n = 3
    assert composite(["p"] * n, ["g"] * n, [["r"]] * n, [True] * n) == pytest.approx([4.0, 5.0, 6.0])


@pytest.mark.usefixtures("_registered")
def test_composite_of_composites_multiplies_weights_and_names_twins_apart():
    inner = {"rewards": [{"id": "first", "weight": 2.0}, {"id": "first"}]}
    outer = RewardFunctionRegistry.get("composite", {"rewards": [{"id": "composite", "args": inner, "weight": 10}]})
    assert [(part.name, part.weight) for part in outer.parts] == [("first", 20.0), ("first_2", 10.0)]


@pytest.mark.parametrize(
    "rewards, words",
    [
        ([], "rewards: list should have at least 1 item"),
        ([{"weight": 1}], r"rewards\[0\]: the key 'id' is missing"),
        ([{"id": "rouge", "weigth": 1}], r"rewards\[0\].weigth.*'weight'"),
        ([{"id": "rouge", "weight": "much"}], r"rewards\[0\].weight.*'much'"),
        ([{"id": "rogue"}], "'rouge'"),
        ([{"id": "rouge", "weight": {"schedule": "linaer"}}], r"rewards\[0\].weight: .*'linaer'.* expected tags: 'con"),
        ([{"id": "rouge"}, {"id": "rouge", "clip": -1}], r"rewards\[1\].clip: must be a positive number or \[lowest"),
        ([{"id": "rouge", "args": ["rouge1"]}], r"rewards\[0\].args: input should be an object"),
        (
            [{"id": "rouge", "weight": 0}, {"id": "rouge", "weight": {"schedule": "constant", "value": 0}}],
            "all weights are",
        ),
        ([{"id": "composite", "clip": 1, "args": {"rewards": [{"id": "rouge"}]}}], r"put clip into its blocks"),
    ],
)
def test_composite_says_which_block_is_wrong(rewards, words):
    with pytest.raises(ConfigError, match=words):
        RewardFunctionRegistry.get("composite", {"rewards": rewards})


@pytest.mark.usefixtures("_registered")
def test_part_is_clipped_and_then_weighted():
    blocks = [{"id": "second", "clip": 1, "weight": 10}, {"id": "second", "clip": [0.5, 1.5], "name": "other"}]
    composite = RewardFunctionRegistry.get("composite", {"rewards": blocks})
    scores = Scorer(composite.parts).score(FinishedReplies(["p"] * 3, ["g"] * 3, [["r"]] * 3))
    assert scores.total == pytest.approx([0.0 + 0.5, 10.0 + 1.0, 10.0 + 1.5])
    assert scores.parts == {"second": [0, 1, 2], "other": [0, 1, 2]}, "as they were earned"


@pytest.mark.usefixtures("_registered")
def test_weights_follow_their_schedules_through_composites_of_composites():
    falling = {"schedule": "linear", "start": 1.0, "end": 0.0, "n_iters": 3}
    steps = {"schedule": "piecewise", "values": [[1, 1.0], [2, 10.0]]}
    inner = {"rewards": [{"id": "first", "weight": falling}, {"id": "second"}]}
    blocks = [{"id": "composite", "args": inner, "weight": steps}, {"id": "first", "name": "always"}]
    composite = RewardFunctionRegistry.get("composite", {"rewards": blocks})
    totals = [
        Scorer(composite.parts).score(FinishedReplies(["p"] * 2, ["g"] * 2, [["r"]] * 2), i).total for i in (1, 2, 3, 4)
    ]
    assert totals == [[4.0, 5.0], [12.0, 22.0], [2.0, 12.0], [2.0, 12.0]]


LINEAR = {"schedule": "linear", "start": 1.0, "end": 0.0, "n_iters": 5}
PIECEWISE = {"schedule": "piecewise", "values": [[1, 1], [3, 0.5], [4, -2.0]]}


def values(weight):
    return [weight(iteration) if callable(weight) else weight for iteration in range(1, 8)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (2, [2.0] * 7),
        ({"schedule": "constant", "value": 2}, [2.0] * 7),
        (LINEAR, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]),
        (PIECEWISE, [1.0, 1.0, 0.5, -2.0, -2.0, -2.0, -2.0]),
    ],
)
def test_weight_in_each_iteration(spec, expected):
    weight = parse_weight(spec)
    assert values(weight) == pytest.approx(expected) and callable(weight) == (len({*expected}) > 1)
    # Env workers get it too.
    assert values(pickle.loads(pickle.dumps(weight))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("much", "a number or a block with a schedule"),
        (True, "a number or a block"),
        (None, "a number or a block"),
        ({"start": 1}, "discriminator 'schedule'"),
        ({"schedule": "linaer"}, "'linaer' .*'constant', 'linear', 'piecewise'"),
        ({"schedule": "linear", "start": 1, "end": 0}, "n_iters\n.*required"),
        ({**LINEAR, "n_iters": 1}, "greater than or equal to 2"),
        ({**LINEAR, "end": "low"}, "valid number"),
        ({**LINEAR, "value": 1}, "value\n"),
        *(
            ({"schedule": "piecewise", "values": values}, "starting with iteration 1")
            for values in ([], [[2, 1.0]], [[1, 1.0], [5, 1.0], [3, 1.0]])
        ),
        *(({"schedule": "piecewise", "values": values}, "valid") for values in ({1: 2.0}, [["x", 1.0]], [[1, None]])),
    ],
)
def test_what_is_no_weight_is_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        parse_weight(spec)
