from __future__ import annotations

import itertools

import numpy as np
import pytest

from rl4dialog.functional.masks import length_groups


def cost(lengths: np.ndarray, groups: list[np.ndarray], fixed_cost: float) -> float:
    return sum(len(group) * lengths[group].max() + fixed_cost for group in groups)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("max_size", [None, 1, 3])
def test_no_other_way_to_cut_costs_less(seed: int, max_size: int | None) -> None:
    rng = np.random.default_rng(seed)
    lengths, fixed_cost = rng.integers(1, 50, size=7), float(rng.integers(0, 60))
    groups = length_groups(lengths, fixed_cost, max_size)
    assert sorted(np.concatenate(groups).tolist()) == list(range(7))
    assert all(len(group) <= (max_size or 7) for group in groups)
    order = np.argsort(-lengths, kind="stable")
    every_cut = (
        [order[a:b] for a, b in itertools.pairwise([0, *cuts, 7])]
        for r in range(7)
        for cuts in itertools.combinations(range(1, 7), r)
    )
    allowed = (cut for cut in every_cut if all(len(group) <= (max_size or 7) for group in cut))
    assert cost(lengths, groups, fixed_cost) == min(cost(lengths, cut, fixed_cost) for cut in allowed)


def test_equal_lengths_stay_together_and_nothing_gives_nothing() -> None:
    assert len(length_groups(np.full(100, 20), 64)) == 1
    assert length_groups(np.zeros(0, dtype=int), 64) == []


def test_sequences_of_one_length_keep_their_order() -> None:
    lengths = np.array([7, 9] * 100)
    groups = length_groups(lengths, 1.0)
    assert [group.tolist() for group in groups] == [list(range(1, 200, 2)), list(range(0, 200, 2))]


def test_one_sequence_is_a_group_and_the_longest_come_first() -> None:
    assert [group.tolist() for group in length_groups(np.array([5]), 64)] == [[0]]
    assert [group.tolist() for group in length_groups(np.array([1, 100, 2]), 0)] == [[1], [2], [0]]
    assert [group.tolist() for group in length_groups(np.array([1, 100, 1]), 5)] == [[1], [0, 2]]
