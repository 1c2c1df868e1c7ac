import pytest
import torch

from rl4dialog.functional.losses import clipped_surrogate, value_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "flat"),
    [(1.0, 1.0, False), (1.3, 1.0, True), (0.7, 1.0, False), (1.3, -1.0, False), (0.7, -1.0, True)],
)
def test_surrogate_gradient_is_zero_exactly_where_clipping_says(ratio: float, advantage: float, flat: bool) -> None:
    step = 1e-3
    points = torch.tensor([ratio - step, ratio + step], dtype=torch.float64)
    low, high = clipped_surrogate(points, torch.full((2,), advantage, dtype=torch.float64), 0.2)
    slope = float((high - low) / (2 * step))
    assert slope == pytest.approx(0.0 if flat else -advantage, abs=1e-9)
    variable = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    clipped_surrogate(variable, torch.tensor([advantage], dtype=torch.float64), 0.2).sum().backward()
    assert variable.grad is not None
    assert float(variable.grad) == pytest.approx(slope, abs=1e-9)


def test_value_loss_without_clipping_is_squared_error() -> None:
    loss = value_loss(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([5.0]), None)
    assert loss.tolist() == [9.0]


def test_value_loss_clips_the_prediction_and_then_has_no_gradient() -> None:
    values = torch.tensor([2.0, 0.1], requires_grad=True)
    loss = value_loss(values, torch.zeros(2), torch.tensor([5.0, 5.0]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([4.5**2, 4.9**2]))
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad[0] == 0
    assert values.grad[1] != 0
