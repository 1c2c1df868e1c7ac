"""Rudeness and walks by hand, and against the labels of their datapools."""

from itertools import pairwise

import pytest
from replies import pay, state

from rl4dialog.core.errors import DataError
from rl4dialog.features.offline import scores
from rl4dialog.features.offline.tasks.random_walks import Graph, WalkTask


def test_scores_of_texts_made_by_hand():
    found = scores.RudenessMetric().compute([""] * 4, ["hi", "duh", "you clown, whatever", ""], [[]] * 4)
    assert found == {
        "rudeness/level": ([0, 1, 2, 0], 0.75),
        "rudeness/polite": ([1, 0, 0, 1], 0.5),
        "rudeness/mild": ([0, 1, 0, 0], 0.25),
        "rudeness/strong": ([0, 0, 1, 0], 0.25),
    }


@pytest.mark.parametrize(("text", "level"), [("i love soups.", 0), ("duh, i love soups.", 1), ("you clown. yawn.", 2)])
def test_each_level_costs_the_scale(text, level):
    assert pay(scores.RudenessReward(), text) == -5 * level
    assert pay(scores.RudenessReward(scale=2), text) == -2 * level
    assert pay(scores.RudenessReward(), text, done=False) == 0


TASK = WalkTask(Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"]}, "a", 5), "c")
META = TASK.to_meta()


def test_scores_of_walks_made_by_hand():
    texts = ["b a", "d c b a", "d c d c d c", "d b", "", "d"]
    found = scores.ShortestPathMetric().compute(["from c"] * 6, texts, [[]] * 6, [META] * 6)
    assert found == {
        "shortest_path/return": ([-2, -4, -5, -5, -5, -5], pytest.approx(-26 / 6)),
        "shortest_path/optimality": (pytest.approx([1, 1 / 3, 0, 0, 0, 0]), pytest.approx(2 / 9)),
        "shortest_path/reached": ([1, 1, 0, 0, 0, 0], pytest.approx(1 / 3)),
        "shortest_path/illegal": ([0, 0, 0, 1, 0, 0], pytest.approx(1 / 6)),
    }


def paid(texts):
    reward, states = scores.ShortestPathReward(), [state(""), *map(state, texts)]
    for number, each in enumerate(states):
        each.context_ids = list(range(number))
    return [reward(before, 1, after, after is states[-1], META) for before, after in pairwise(states)]


@pytest.mark.parametrize(
    ("texts", "rewards"),
    [
        (["b", "b a", "b a"], [-1, -1, 0]),
        (["b", "b a"], [-1, -1]),
        (["b", "b a", "b a x", "b a x"], [-1, -1, 0, 0]),
        (["d", "d c", "d c d", "d c d c", "d c d c b", "d c d c b"], [-1, -1, -1, -1, -1, 0]),
        (["d", "d c", "d c"], [-1, -1, -3]),
        (["d", "d x", "d x b", "d x b"], [-1, -4, 0, 0]),
        (["x", "x"], [-5, 0]),
        ([""], [-5]),
        # Tokens that are not whole words.
        (["", "b", "b", "b a", "b a"], [0, -1, 0, -1, 0]),
        (["b", "ba", "ba"], [-1, -4, 0]),
        (["b a"], [-2]),
    ],
)
def test_each_step_costs_one_and_the_end_the_rest(texts, rewards):
    assert paid(texts) == rewards
    assert sum(rewards) == TASK.return_of(texts[-1])


@pytest.mark.parametrize("meta_data", [None, {}, {"walk": 1}])
def test_samples_of_other_datapools_are_an_error(meta_data):
    with pytest.raises(DataError, match=r"reward 'shortest_path' needs samples .* use the datapool random_walks"):
        scores.ShortestPathReward()(state(""), 1, state("b"), True, meta_data)
    with pytest.raises(DataError, match="metric 'shortest_path' needs samples"):
        scores.ShortestPathMetric().compute(["x"], ["b a"], [[]], [meta_data])
