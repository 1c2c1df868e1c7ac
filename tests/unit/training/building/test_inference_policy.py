"""Policies without training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import make_config
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.config import parse_config
from rl4dialog.functional.replies import Replies
from rl4dialog.training.building.lengths import Lengths
from rl4dialog.training.building.policy import build_inference_policy


@pytest.mark.parametrize(("prefix", "n_models"), [("", 1), ("maskable_", 3)])
def test_only_a_mask_needs_copies_of_the_model(tmp_path: Path, prefix: str, n_models: int) -> None:
    tokenizer = make_tokenizer()
    config = parse_config(make_config(tmp_path, alg__policy__id=f"{prefix}causal_lm_actor_critic_policy"), "config")
    model = make_gpt2(tokenizer)
    policy = build_inference_policy(config, tokenizer, None, model, Lengths(8, 4))
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in policy.parameters()) == n_models * n_weights
    replies = Replies.from_ids([[3, 4]], [[5, 6]], torch.device("cpu"))
    if not policy.maskable:
        torch.testing.assert_close(policy.reference_log_probs(replies), policy.sequence_log_probs(replies))
