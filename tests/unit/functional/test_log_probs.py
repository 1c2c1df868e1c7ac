import math

import torch

from rl4dialog.functional.log_probs import expected_value, mask_logits, scale_logits, token_entropy, token_log_probs


def test_log_probs_equal_log_softmax_of_scaled_logits() -> None:
    logits, ids = torch.randn(3, 4, 7), torch.randint(7, (3, 4))
    expected = (logits / 0.7).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(token_log_probs(logits, ids, 0.7), expected)


def test_entropy_of_uniform_logits_is_log_of_vocabulary() -> None:
    torch.testing.assert_close(token_entropy(torch.zeros(2, 8)), torch.full((2,), 8.0).log())


def test_entropy_falls_with_temperature() -> None:
    logits = torch.randn(5, 9)
    assert (token_entropy(logits, 0.5) < token_entropy(logits, 1.0)).all()


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits, ids = torch.randn(6, 50).bfloat16(), torch.randint(50, (6,))
    scored = token_log_probs(logits, ids)
    assert scored.dtype == torch.float32
    torch.testing.assert_close(scored, logits.float().log_softmax(-1)[torch.arange(6), ids])


def test_entropy_is_over_the_vocabulary_and_under_the_temperature() -> None:
    logits = torch.randn(3, 4, 7)
    expected = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    torch.testing.assert_close(token_entropy(logits, 0.7), expected)


def test_logits_at_temperature_one_are_not_copied() -> None:
    logits = torch.randn(2, 3)
    assert scale_logits(logits, 1.0) is logits
    torch.testing.assert_close(scale_logits(logits, 2.0), logits / 2)


def test_masked_logits_have_no_probability_and_stay_finite() -> None:
    allowed = torch.tensor([[True, False, True], [False, True, False]])
    logits = torch.tensor([[1.0, 50.0, 2.0], [3.0, 1e30, -1e30]])
    masked = mask_logits(logits, allowed)
    probabilities = masked.softmax(-1)
    assert probabilities[~allowed].eq(0).all()
    torch.testing.assert_close(probabilities[0, [0, 2]], logits[0, [0, 2]].softmax(-1))
    assert masked.log_softmax(-1).isfinite().all() and token_entropy(masked).isfinite().all()
    assert mask_logits(logits.bfloat16(), allowed).dtype == torch.float32


def test_expected_value_is_the_mean_under_the_softmax() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0 + math.log(3), -1e9]])
    torch.testing.assert_close(expected_value(logits, torch.tensor([0.0, 0.5, 1.0])), torch.tensor([0.5, 0.375]))
