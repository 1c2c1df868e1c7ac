"""Losses on numbers computed by hand."""

import pytest
import torch
from two_processes import in_two_processes

from rl4dialog.functional.losses import (
    ClipRange,
    aggregation_weights,
    clipped_surrogate,
    clipped_weight_surrogate,
    sequence_log_ratio,
    value_loss,
)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "flat"),
    [
        *((1.0, 1.0, None, False), (1.3, 1.0, None, True), (0.7, 1.0, None, False)),
        *((1.3, -1.0, None, False), (0.7, -1.0, None, True), (9.0, -1.0, None, False)),
        *((1.9, -1.0, 2.0, False), (2.1, -1.0, 2.0, True), (0.9, 3.0, 2.0, False), (0.7, -1.0, 2.0, True)),
    ],
)
def test_surrogate_gradient_is_zero_exactly_where_clipping_says(ratio, advantage, dual_clip, flat):
    step = 1e-3
    points = torch.tensor([ratio - step, ratio + step], dtype=torch.float64)
    advantages = torch.full((2,), advantage, dtype=torch.float64)
    low, high = clipped_surrogate(points, advantages, ClipRange(0.2, 0.2), dual_clip)
    slope = float((high - low) / (2 * step))
    assert slope == pytest.approx(0.0 if flat else -advantage, abs=1e-9)
    variable = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    clipped_surrogate(variable, advantages[:1], ClipRange(0.2, 0.2), dual_clip).sum().backward()
    assert variable.grad is not None and float(variable.grad) == pytest.approx(slope, abs=1e-9)
    ratios, advantages = torch.tensor([0.7, 1.3, 1.6]), torch.tensor([-1.0, 1.0, 1.0])
    assert clipped_surrogate(ratios, advantages, ClipRange(0.2, 0.5)).tolist() == pytest.approx([0.8, -1.3, -1.5])
    # The loss of a token that became ten times as likely, although it should not: three times its advantage at most.
    ratios, advantages = torch.tensor([10.0, 2.0, 10.0]), torch.tensor([-2.0, -2.0, 2.0])
    losses = clipped_surrogate(ratios, advantages, ClipRange(0.2, 0.2), 3.0)
    assert losses.tolist() == pytest.approx([6.0, 4.0, -2.4])


def test_value_loss_clips_the_prediction_and_then_has_no_gradient():
    values = torch.tensor([2.0, 0.1], requires_grad=True)
    assert value_loss(values[:1], torch.zeros(1), torch.tensor([5.0]), None).tolist() == [9.0]
    loss = value_loss(values, torch.zeros(2), torch.tensor([5.0, 5.0]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([4.5**2, 4.9**2]))
    loss.sum().backward()
    assert values.grad is not None
    # With a Huber loss, an error of 3 counts as 2 * 1 * (3 - 1 / 2) above the limit 1, and one of 4.9 squared below 5.
    assert value_loss(values[:1], torch.zeros(1), torch.tensor([5.0]), None, 1.0).tolist() == [5.0]
    torch.testing.assert_close(value_loss(values, torch.zeros(2), torch.tensor([5.0, 5.0]), 0.5, 5.0), loss)
    assert values.grad[0] == 0
    assert values.grad[1] != 0


def test_clipped_weights_keep_the_gradient_of_every_token():
    log_probs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    ratio = (log_probs - torch.tensor([-1.0, -4.0, -2.0])).exp()
    loss = clipped_weight_surrogate(ratio, log_probs, torch.tensor([1.0, 2.0, -1.0]), ClipRange(0.2, 0.5))
    assert loss.tolist() == pytest.approx([1.0, 6.0, -2.4])
    loss.sum().backward()
    assert log_probs.grad is not None and log_probs.grad.tolist() == pytest.approx([-1.0, -3.0, 0.8])


def test_ratio_of_a_reply_is_its_geometric_mean_with_the_gradient_of_gspo():
    log_ratio = torch.tensor([0.3, -0.1, 0.5], requires_grad=True)
    replies = torch.tensor([0, 0, 1])
    found = sequence_log_ratio(log_ratio, replies).exp()
    assert found.tolist() == pytest.approx(torch.tensor([0.1, 0.1, 0.5]).exp().tolist())
    # The mean over a reply of one advantage has the gradient of the whole ratio.
    (2.0 * found[:2].mean() - found[2]).backward()
    expected = torch.tensor([0.3, -0.1, 0.5], requires_grad=True)
    (2.0 * expected[:2].mean().exp() - expected[2].exp()).backward()
    torch.testing.assert_close(log_ratio.grad, expected.grad)


REPLIES, TRAINED = [0, 0, 0, 1, 2, 2], [True, True, True, True, False, False]
WEIGHTS = {
    "token_mean": [6 / 4] * 4 + [0.0] * 2,
    "sequence_mean": [6 / 2 / 3] * 3 + [6 / 2] + [0.0] * 2,
    "constant": [6 / 2 / 5] * 4 + [0.0] * 2,
}


@pytest.mark.parametrize("aggregation", WEIGHTS)
def test_weights_turn_a_mean_over_all_tokens_into_the_aggregation(aggregation):
    found = aggregation_weights(torch.tensor(REPLIES), torch.tensor(TRAINED), aggregation, 5)
    assert found.tolist() == pytest.approx(WEIGHTS[aggregation])
    nothing = aggregation_weights(torch.tensor(REPLIES), torch.zeros(6, dtype=torch.bool), aggregation, 5)
    assert nothing.tolist() == [0.0] * 6


@pytest.mark.parametrize("aggregation", WEIGHTS)
def test_two_processes_have_the_weights_of_one(aggregation, tmp_path):
    def work(number):
        part = slice(0, 3) if number == 0 else slice(3, 6)
        replies = torch.tensor(REPLIES[part])
        weights = aggregation_weights(replies - replies[0], torch.tensor(TRAINED[part]), aggregation, 5)
        return weights.tolist()

    first, second = in_two_processes(work, tmp_path)
    assert first + second == pytest.approx(WEIGHTS[aggregation])
