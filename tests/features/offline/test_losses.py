"""Losses and targets of learning from logs, by hand."""

import numpy as np
import pytest
import torch

from rl4dialog.features.offline.losses import (
    advantage_weights,
    conservative_penalty,
    expectile_loss,
    next_states,
    q_loss,
    returns_to_go,
    step_discounts,
    td_targets,
)


def test_numbers_of_logged_data_by_hand():
    rewards, discounts, episodes = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 0.5, 1.0, 0.0]), [0, 0, 1, 1]
    assert returns_to_go(rewards, discounts, np.array(episodes)).tolist() == [2.0, 2.0, 12.0, 8.0]
    assert next_states(torch.tensor(rewards), torch.tensor(episodes)).tolist() == [2.0, 0.0, 8.0, 0.0]
    assert next_states(torch.zeros(0), torch.zeros(0)).shape == (0,)
    assert step_discounts(torch.tensor([0, 0, 1, 2, 2]), 0.5).tolist() == [1.0, 0.5, 0.5, 1.0, 0.5]
    assert td_targets(*torch.tensor([[1.0, 0.0], [0.9, 0.9], [2.0, 0.0]])).tolist() == pytest.approx([2.8, 0.0])
    values, targets = torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0])
    assert q_loss(values, targets).tolist() == [0.25, 9.0] and q_loss(values, targets, 1.0).tolist() == [0.125, 2.5]
    weights = advantage_weights(torch.tensor([0.0, 2.0, 100.0]), 2.0, 3.0)
    assert weights.tolist() == pytest.approx([1.0, np.e, np.e**3])


@pytest.mark.parametrize(("tau", "below", "above"), [(0.5, 0.5, 2.0), (0.9, 0.1, 3.6), (0.1, 0.9, 0.4)])
def test_expectile_loss_by_hand(tau, below, above):
    torch.testing.assert_close(expectile_loss(torch.tensor([-1.0, 2.0]), tau), torch.tensor([below, above]))


def test_conservative_penalty_is_a_cross_entropy():
    values = torch.randn(5, 7)
    ids = torch.arange(5)
    expected = torch.nn.functional.cross_entropy(values / 2, ids, reduction="none")
    torch.testing.assert_close(conservative_penalty(values, values[ids, ids], 2.0), expected)
