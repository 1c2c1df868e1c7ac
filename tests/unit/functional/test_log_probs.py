import torch

from rl4dialog.functional.log_probs import token_entropy, token_log_probs


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
