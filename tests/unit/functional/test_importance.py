"""Weights that correct for another sampler, with expectations over all actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rl4dialog.functional.log_probs import effective_share, sampler_weights
from rl4dialog.functional.losses import ClipRange, clipped_surrogate

LOGITS, ADVANTAGES = torch.tensor([1.0, 0.2, -0.7]), torch.tensor([0.5, -1.0, 2.0])


def expected_gradient(sampler: Tensor, correct: bool, drawn_from: Tensor | None = None) -> Tensor:
    """Exact expectation of the policy's gradient over the actions of a sampler."""
    logits = LOGITS.clone().requires_grad_(True)
    log_probs = logits.log_softmax(-1)
    support = sampler > 0
    ratio = (log_probs - log_probs.detach()).exp()
    losses = clipped_surrogate(ratio, ADVANTAGES, ClipRange(0.2, 0.2))
    weights = torch.ones(3)
    if correct:
        log_ratio = log_probs.detach() - sampler.log()
        weights, _ = sampler_weights(log_ratio[support], torch.arange(int(support.sum())), "token", 100.0, "truncate")
    (sampler[support] * weights[: int(support.sum())] * losses[support]).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_corrected_gradient_is_that_of_the_policys_own_samples() -> None:
    policy, other = LOGITS.softmax(-1), (LOGITS / 3).softmax(-1)  # the sampler has another temperature
    own = expected_gradient(policy, correct=False)
    torch.testing.assert_close(expected_gradient(other, correct=True), own)
    assert (expected_gradient(other, correct=False) - own).abs().max() > 0.1


def test_no_weight_restores_what_is_never_sampled() -> None:
    policy = LOGITS.softmax(-1)
    top_2 = torch.cat([policy[:2] / policy[:2].sum(), torch.zeros(1)])
    jacobian = torch.diag(policy) - policy[:, None] * policy  # row a is p(a) * gradient of log p(a)
    parts = -jacobian * ADVANTAGES[:, None]
    torch.testing.assert_close(expected_gradient(top_2, correct=True), parts[:2].sum(dim=0))
    torch.testing.assert_close(expected_gradient(policy, correct=False), parts.sum(dim=0))
    assert (parts[2]).abs().max() > 0.1


RATIOS = torch.tensor([2.0, 0.5, 3.0, 0.9])


@pytest.mark.parametrize(
    ("level", "mode", "weights", "limited"),
    [
        ("token", "truncate", [2.0, 0.5, 2.5, 0.9], [0, 0, 1, 0]),
        ("token", "mask", [2.0, 0.5, 0.0, 0.9], [0, 0, 1, 0]),
        ("sequence", "truncate", [1.0, 2.5], [0, 1]),
        ("sequence", "mask", [1.0, 0.0], [0, 1]),
    ],
)
def test_weights_of_tokens_and_replies_are_limited(level: Any, mode: Any, weights: Any, limited: Any) -> None:
    found, is_limited = sampler_weights(RATIOS.log(), torch.tensor([0, 0, 1, 1]), level, 2.5, mode)
    assert found.tolist() == pytest.approx(weights) and is_limited.tolist() == limited
    small, _ = sampler_weights(torch.tensor([0.3]).log(), torch.tensor([0]), level, 2.5, mode)
    assert small.tolist() == pytest.approx([0.3 if mode == "truncate" else 0.0])


def test_effective_share_of_equal_weights_is_one() -> None:
    assert effective_share(4 * 0.7, 4 * 0.49, 4) == pytest.approx(1.0)
    assert effective_share(1.0, 1.0, 4) == 0.25 and effective_share(0.0, 0.0, 4) == 0.0
