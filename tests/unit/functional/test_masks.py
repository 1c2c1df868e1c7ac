import itertools

import numpy as np
import pytest
import torch

from rl4dialog.functional.masks import (
    distinct_rows,
    left_aligned,
    length_groups,
    padded,
    position_ids_from_mask,
    rows_to_share,
    trim_left_padding,
    whiten,
)


def test_positions_count_real_tokens_wherever_padding_is():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    positions = position_ids_from_mask(mask)
    assert positions[0, 2:].tolist() == positions[1, :2].tolist() == [0, 1]
    assert positions[2].tolist() == [0, 1, 2, 3]


def test_trim_left_padding_keeps_longest_row():
    ids = torch.tensor([[9, 9, 1, 2], [9, 9, 9, 3]])
    mask = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]).bool()
    trimmed, trimmed_mask = trim_left_padding(ids, mask)
    assert trimmed.tolist() == [[1, 2], [9, 3]]
    assert trimmed_mask.tolist() == [[True, True], [False, True]]


def test_whiten_makes_nothing_of_rounding():
    noise = torch.randn(100) * 1e-7
    assert whiten(3 + noise).tolist() == [0.0] * 100
    assert whiten(torch.full((1000,), 0.1)).tolist() == [0.0] * 1000
    assert float(whiten(1000 + torch.arange(2).repeat(50) * 1e-3).std()) > 0.9, "float32 resolves that"
    assert float(whiten(noise).std()) > 0.9, "small numbers are no rounding by themselves"


def test_whiten_equals_its_formula_and_takes_what_is_added_to_the_deviation():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert whiten(torch.tensor([])).numel() == 0 and whiten(values[:1]).tolist() == [1.0]
    torch.testing.assert_close(whiten(values), (values - 3) / 7**0.5)
    torch.testing.assert_close(whiten(values, eps=1.0), (values - 3) / (7**0.5 + 1))


def test_padding_puts_rows_at_either_edge():
    ids, mask = padded([[5], [6, 7, 8], []], left=True)
    assert ids.tolist() == [[0, 0, 5], [6, 7, 8], [0, 0, 0]]
    assert mask.tolist() == [[False, False, True], [True] * 3, [False] * 3]
    assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)


def test_left_aligned_moves_padding_behind_and_keeps_the_order_of_tokens():
    ids = torch.tensor([[9, 1, 9, 2, 9], [9, 9, 9, 9, 3]])
    mask = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 1]]).bool()
    aligned, aligned_mask = left_aligned(ids, mask)
    assert aligned.shape == (2, 2) and aligned[0].tolist() == [1, 2] and aligned[1, 0] == 3
    assert aligned_mask.tolist() == [[True, True], [True, False]]
    row = torch.arange(500)[None]
    assert left_aligned(row, row % 3 != 0)[0].tolist() == [[i for i in range(500) if i % 3]]


def test_distinct_rows_are_told_by_their_real_tokens():
    """Ids as small as 0 and 1 are tokens as good as others, and as padding they make no difference."""
    ids = torch.tensor([[7, 1, 2], [8, 1, 2], [0, 1, 2], [7, 1, 2], [5, 5, 3]])
    mask = torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 1]]).bool()
    first, inverse = distinct_rows(ids, mask)
    assert sorted(first.tolist()) == [0, 2, 3, 4]
    assert first[inverse].tolist() == [0, 0, 2, 3, 4]
    for id in (0, 1):
        row = torch.tensor([[id, 4], [9, 4]])
        assert len(distinct_rows(row, torch.tensor([[1, 1], [0, 1]]).bool())[0]) == 2
    nothing, of_none = distinct_rows(ids[:0], mask[:0])
    assert len(nothing) == len(of_none) == 0


@pytest.mark.parametrize(("cost", "is_shared"), [(0, True), (6, True), (7, False), (1000, False)])
def test_rows_are_shared_if_that_saves_enough_positions(cost, is_shared):
    ids = torch.tensor([[7, 1, 2], [7, 1, 2], [8, 1, 2], [8, 1, 2]])
    shared = rows_to_share(ids, torch.ones(4, 3).bool(), cost)
    assert (shared is not None) == is_shared
    if shared is not None:
        first, repeats = shared
        assert torch.equal(ids[first][repeats], ids)
    assert rows_to_share(torch.tensor([[7], [7], [8]]), torch.ones(3, 1).bool()) is None, "more than half are distinct"


def cost(lengths, groups, fixed_cost):
    return sum(len(group) * lengths[group].max() + fixed_cost for group in groups)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("max_size", [None, 1, 3])
def test_no_other_way_to_cut_costs_less(seed, max_size):
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


def test_one_sequence_is_a_group_and_the_longest_come_first():
    assert length_groups(np.zeros(0, dtype=int), 64) == []
    assert [group.tolist() for group in length_groups(np.array([5]), 64)] == [[0]]
    assert [group.tolist() for group in length_groups(np.array([1, 100, 2]), 0)] == [[1], [2], [0]]
    assert [group.tolist() for group in length_groups(np.array([1, 100, 1]), 5)] == [[1], [0, 2]]
