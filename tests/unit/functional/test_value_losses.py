from __future__ import annotations

import numpy as np
import pytest
import torch

from rl4dialog.functional.losses import (
    advantage_weights,
    conservative_penalty,
    expectile_loss,
    next_states,
    q_loss,
    returns_to_go,
    step_discounts,
    td_targets,
)


def test_next_states_stop_at_the_end_of_an_episode() -> None:
    values, episodes = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 1, 1])
    assert next_states(values, episodes).tolist() == [2.0, 0.0, 4.0, 0.0]
    assert next_states(torch.zeros(0), torch.zeros(0)).shape == (0,)


def test_discounts_apply_where_a_unit_ends() -> None:
    assert step_discounts(torch.tensor([0, 0, 1, 2, 2]), 0.5).tolist() == [1.0, 0.5, 0.5, 1.0, 0.5]


def test_returns_by_hand() -> None:
    rewards, discounts = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 0.5, 1.0, 0.0])
    assert returns_to_go(rewards, discounts, np.array([0, 0, 1, 1])).tolist() == [2.0, 2.0, 12.0, 8.0]


def test_td_targets_by_hand() -> None:
    targets = td_targets(torch.tensor([1.0, 0.0]), torch.tensor([0.9, 0.9]), torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(targets, torch.tensor([2.8, 0.0]))


@pytest.mark.parametrize(("tau", "below", "above"), [(0.5, 0.5, 2.0), (0.9, 0.1, 3.6), (0.1, 0.9, 0.4)])
def test_expectile_loss_by_hand(tau: float, below: float, above: float) -> None:
    torch.testing.assert_close(expectile_loss(torch.tensor([-1.0, 2.0]), tau), torch.tensor([below, above]))


def test_expectile_of_a_sample_minimizes_the_loss() -> None:
    sample = torch.tensor([0.0, 1.0, 5.0])
    grid = torch.linspace(0, 5, 5001)
    losses = torch.stack([expectile_loss(sample - value, 0.8).sum() for value in grid])
    best = grid[losses.argmin()]
    # 0.2 (m - 0) + 0.2 (m - 1) = 0.8 (5 - m)
    assert float(best) == pytest.approx(4.2 / 1.2, abs=2e-3)


def test_huber_is_torchs() -> None:
    values, targets = torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0])
    assert q_loss(values, targets).tolist() == [0.25, 9.0]
    assert q_loss(values, targets, 1.0).tolist() == [0.125, 2.5]


def test_conservative_penalty_is_a_cross_entropy() -> None:
    values = torch.randn(5, 7)
    ids = torch.arange(5)
    expected = torch.nn.functional.cross_entropy(values / 2, ids, reduction="none")
    torch.testing.assert_close(conservative_penalty(values, values[ids, ids], 2.0), expected)


def test_advantage_weights_are_limited() -> None:
    weights = advantage_weights(torch.tensor([0.0, 2.0, 100.0]), 2.0, 3.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, np.e, np.e**3], dtype=torch.float32))
