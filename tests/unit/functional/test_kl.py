import numpy as np
import pytest
import torch

from rl4dialog.functional.log_probs import kl_estimates, kl_penalized_rewards


def test_rewards_sum_to_score_minus_penalty() -> None:
    rng = np.random.default_rng(0)
    task, log_probs, ref = np.array([0.0, 0.0, 0.0, 2.5]), rng.normal(size=4), rng.normal(size=4)
    rewards = kl_penalized_rewards(task, log_probs, ref, 0.3)
    assert rewards.sum() == pytest.approx(2.5 - 0.3 * (log_probs - ref).sum(), rel=1e-5)
    np.testing.assert_allclose(rewards[:3], -0.3 * (log_probs - ref)[:3], rtol=1e-5)


@pytest.mark.parametrize(("estimator", "tolerance"), [("k1", 0.01), ("k2", 0.02), ("k3", 0.01)])
def test_sampled_estimates_agree_with_exact_kl_in_the_mean(estimator: str, tolerance: float) -> None:
    torch.manual_seed(0)
    policy = (torch.randn(20) * 0.3).log_softmax(0)
    reference = (torch.randn(20) * 0.3).log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    samples = torch.multinomial(policy.exp(), 200_000, replacement=True)
    estimate = kl_estimates(policy[samples], reference[samples], estimator).mean()
    assert float(estimate) == pytest.approx(float(exact), abs=tolerance)


def test_k3_is_never_negative() -> None:
    log_probs, ref_log_probs = torch.randn(2, 1000, dtype=torch.float64)
    assert (kl_estimates(log_probs, ref_log_probs, "k3") >= 0).all()


def test_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2 or k3"):
        kl_estimates(torch.zeros(1), torch.zeros(1), "k4")


def test_estimates_equal_their_formulas() -> None:
    log_probs, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    log_ratio = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(kl_estimates(log_probs, reference), log_ratio)
    torch.testing.assert_close(kl_estimates(log_probs, reference, "k2"), log_ratio**2 / 2)
    torch.testing.assert_close(kl_estimates(log_probs, reference, "k3"), (-log_ratio).exp() - 1 + log_ratio)


def test_charged_rewards_are_in_single_precision() -> None:
    assert kl_penalized_rewards(*np.zeros((3, 2)), 0.1).dtype == np.float32
