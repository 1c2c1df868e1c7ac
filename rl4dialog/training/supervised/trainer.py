"""The loss of supervised fine-tuning, at labelled positions only.

Only these positions go through the language model's head, which accounts for most of the computation with a large
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from rl4dialog.policies.encoder_decoder import EncoderDecoder
from rl4dialog.policies.lm_head import head_is_plain, lm_logits
from rl4dialog.training.resumable_trainer import ResumableTrainer, TrainingLoop
from rl4dialog.training.supervised.examples import IGNORED_LABEL


class SupervisedTrainer(ResumableTrainer):
    """A trainer that computes logits at labelled positions only."""

    def __init__(self, loop: TrainingLoop | None = None, **kwargs: Any) -> None:
        super().__init__(loop, **kwargs)
        self._head_is_plain = head_is_plain(kwargs["model"])

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        # A wrapped model (several devices) must be called as a whole, and label smoothing needs all logits.
        is_whole = model is not self.model or self.accelerator.num_processes > 1 or self.label_smoother is not None
        if is_whole or return_outputs or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self.accelerator.autocast():
            return summed_loss(model, inputs, self._head_is_plain) / num_items_in_batch


def summed_loss(model: PreTrainedModel, batch: Mapping[str, Tensor], is_plain: bool) -> Tensor:
    """Total negative log-likelihood of all labelled tokens of a batch, in nats."""
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    learned = labels != IGNORED_LABEL
    if model.config.is_encoder_decoder:
        hidden = EncoderDecoder(model, share_prompts=False)(ids, mask.bool(), labels[:, :-1].clamp(min=0))
    else:
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
        labels, learned = labels[:, 1:], learned[:, 1:]
    logits = lm_logits(model, hidden[learned], is_plain)
    return functional.cross_entropy(logits.float(), labels[learned], reduction="sum")
