"""The supervised loss of random references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import make_env, make_gpt2, make_policy, make_t5, make_tokenizer, next_token

from rl4dialog.training.supervised.auxiliary_loss import SupervisedLoss

PROMPTS, REPLIES = [[3, 4, 5], [6]], [[7, 8, 0], [9, 0]]


@pytest.mark.parametrize("make_model", [make_gpt2, make_t5])
def test_loss_is_the_mean_over_the_tokens_of_the_drawn_replies(make_model: Any) -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_model(tokenizer))
    model = policy.language_model
    examples: Any = [
        {"input_ids": prompt, "labels": reply}
        if model.config.is_encoder_decoder
        else {"input_ids": prompt + reply, "labels": [-100] * len(prompt) + reply}
        for prompt, reply in zip(PROMPTS, REPLIES, strict=True)
    ]
    torch.manual_seed(3)
    drawn = torch.randint(2, (5,)).tolist()
    assert set(drawn) == {0, 1}
    losses = [
        -next_token(model, PROMPTS[i], REPLIES[i][:t])[0].log_softmax(-1)[token]
        for i in drawn
        for t, token in enumerate(REPLIES[i])
    ]
    torch.manual_seed(3)
    loss = SupervisedLoss(examples, 1)(policy, 5)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in policy.actor_parameters())
