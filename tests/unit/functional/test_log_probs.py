"""Weights that correct for another sampler, with expectations over all actions."""

import math

import numpy as np
import pytest
import torch

from rl4dialog.functional.log_probs import (
    effective_share,
    expected_value,
    kl_estimates,
    kl_penalized_rewards,
    mask_logits,
    sampler_weights,
    scale_logits,
    token_entropy,
    token_log_probs,
)


def test_log_probs_equal_log_softmax_of_scaled_logits():
    logits, ids = torch.randn(3, 4, 7), torch.randint(7, (3, 4))
    expected = (logits / 0.7).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(token_log_probs(logits, ids, 0.7), expected)
    half = logits.bfloat16()
    torch.testing.assert_close(token_log_probs(half, ids, 0.7), token_log_probs(half.float(), ids, 0.7))
    assert scale_logits(logits, 1.0) is logits, "no copy"


def test_entropy_is_over_the_vocabulary_and_under_the_temperature():
    logits = torch.randn(3, 4, 7)
    expected = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    torch.testing.assert_close(token_entropy(logits, 0.7), expected)


def test_masked_logits_have_no_probability_and_stay_finite():
    allowed = torch.tensor([[True, False, True], [False, True, False]])
    logits = torch.tensor([[1.0, 50.0, 2.0], [3.0, 1e30, -1e30]])
    masked = mask_logits(logits, allowed)
    probabilities = masked.softmax(-1)
    assert probabilities[~allowed].eq(0).all()
    torch.testing.assert_close(probabilities[0, [0, 2]], logits[0, [0, 2]].softmax(-1))
    assert masked.log_softmax(-1).isfinite().all() and token_entropy(masked).isfinite().all()
    assert mask_logits(logits.bfloat16(), allowed).dtype == torch.float32


def test_expected_value_is_the_mean_under_the_softmax():
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0 + math.log(3), -1e9]])
    torch.testing.assert_close(expected_value(logits, torch.tensor([0.0, 0.5, 1.0])), torch.tensor([0.5, 0.375]))


def test_rewards_sum_to_score_minus_penalty():
    rng = np.random.default_rng(0)
    task, log_probs, ref = np.array([0.0, 0.0, 0.0, 2.5]), rng.normal(size=4), rng.normal(size=4)
    rewards = kl_penalized_rewards(task, log_probs, ref, 0.3)
    assert rewards.dtype == np.float32
    assert rewards.sum() == pytest.approx(2.5 - 0.3 * (log_probs - ref).sum(), rel=1e-5)
    np.testing.assert_allclose(rewards[:3], -0.3 * (log_probs - ref)[:3], rtol=1e-5)


def test_estimates_equal_their_formulas():
    log_probs, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    log_ratio = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(kl_estimates(log_probs, reference), log_ratio)
    torch.testing.assert_close(kl_estimates(log_probs, reference, "k2"), log_ratio**2 / 2)
    torch.testing.assert_close(kl_estimates(log_probs, reference, "k3"), (-log_ratio).exp() - 1 + log_ratio)
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2 or k3"):
        kl_estimates(log_probs, reference, "k4")


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
def test_weights_of_tokens_and_replies_are_limited(level, mode, weights, limited):
    found, is_limited = sampler_weights(RATIOS.log(), torch.tensor([0, 0, 1, 1]), level, 2.5, mode)
    assert found.tolist() == pytest.approx(weights) and is_limited.tolist() == limited
    small, _ = sampler_weights(torch.tensor([0.3]).log(), torch.tensor([0]), level, 2.5, mode)
    assert small.tolist() == pytest.approx([0.3 if mode == "truncate" else 0.0])


def test_effective_share_of_equal_weights_is_one():
    assert effective_share(4 * 0.7, 4 * 0.49, 4) == pytest.approx(1.0)
    assert effective_share(1.0, 1.0, 4) == 0.25 and effective_share(0.0, 0.0, 4) == 0.0
