"""Supervised loss of random references, as a further term of a policy's update (PPO-ptx; Ouyang et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lm_head import head_is_plain
from rl4dialog.training.supervised.examples import IGNORED_LABEL, PaddingCollator, SupervisedExample
from rl4dialog.training.supervised.trainer import summed_loss


class SupervisedLoss:
    """Mean negative log-likelihood per labelled token, in nats, of examples that are drawn uniformly.

    Examples are drawn with torch's global random state, so a resumed run draws the same ones.

    Args:
        examples: The examples.
        pad_token_id: Id for padding.
    """

    def __init__(self, examples: Sequence[SupervisedExample], pad_token_id: int) -> None:
        self._examples, self._collator = examples, PaddingCollator(pad_token_id)

    def __call__(self, policy: LMActorCriticPolicy, batch_size: int) -> Tensor:
        """Compute the loss of ``batch_size`` examples. Shape ()."""
        model = policy.language_model
        chosen = [self._examples[i] for i in torch.randint(len(self._examples), (batch_size,)).tolist()]
        batch = {name: tensor.to(policy.device) for name, tensor in self._collator(chosen).items()}
        with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.precision == "bf16"):
            total = summed_loss(model, batch, head_is_plain(model))
        first_label = 0 if model.config.is_encoder_decoder else 1
        return total / (batch["labels"][:, first_label:] != IGNORED_LABEL).sum().clamp(min=1)
