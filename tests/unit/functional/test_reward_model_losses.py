"""Losses of reward models, on numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rl4dialog.functional.losses import RewardModelLoss, comparison_losses, rating_losses


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_comparison_is_the_log_likelihood_of_bradley_and_terry() -> None:
    found = comparison_losses(torch.tensor([1.0, 0.0]), torch.tensor([-0.5, 0.0]), 0.1)
    assert found.tolist() == pytest.approx([-math.log(sigmoid(1.5)) + 0.1 * 0.25, math.log(2)])


def test_rating_is_a_squared_error_or_a_cross_entropy() -> None:
    scores, ratings = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.25])
    assert rating_losses(scores, ratings, "squared_error").tolist() == pytest.approx([1.0, 1.5625])
    expected = [-math.log(sigmoid(2)), -0.25 * math.log(sigmoid(-1)) - 0.75 * math.log(sigmoid(1))]
    assert rating_losses(scores, ratings, "cross_entropy").tolist() == pytest.approx(expected)


def test_batch_is_the_plain_formula_over_single_judgements_with_its_gradient() -> None:
    torch.manual_seed(0)
    first, worse = torch.randn(5, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    labels = torch.tensor([0.3, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    is_comparison = torch.tensor([False, True, False, False, True])
    weights = torch.tensor([[1.0, 0], [2, 1], [0, 3], [1, 1], [1, 0]], dtype=torch.float64)
    loss = RewardModelLoss("cross_entropy", rating_weight=0.5, center_coef=0.01)

    scores = torch.cat([first, worse]).requires_grad_()
    found = loss(scores, labels, is_comparison, weights)
    found.sum().backward()

    plain = torch.cat([first, worse]).requires_grad_()
    expected, n_compared = [torch.zeros((), dtype=torch.float64) for _ in range(2)], 0
    for row in range(5):
        for member in range(2):
            score = plain[row, member]
            if is_comparison[row]:
                other = plain[5 + n_compared, member]
                term = -torch.log(1 / (1 + torch.exp(other - score))) + 0.01 * (score + other) ** 2
            else:
                p = 1 / (1 + torch.exp(-score))
                term = -0.5 * (labels[row] * torch.log(p) + (1 - labels[row]) * torch.log(1 - p))
            expected[member] = expected[member] + weights[row, member] * term
        n_compared += int(is_comparison[row])
    torch.stack(expected).sum().backward()
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(scores.grad, plain.grad)


@pytest.mark.parametrize("all_alike", [True, False])
def test_batch_of_one_kind_only(all_alike: bool) -> None:
    scores = torch.zeros(4 if all_alike else 2, 1)
    found = RewardModelLoss("cross_entropy")(scores, torch.ones(2), torch.tensor([all_alike] * 2))
    assert found.item() == pytest.approx(2 * math.log(2))
