"""The loss of reward models: the squared error of the predicted rating, which runs from 0 to 1.

With the squared error, the best prediction is the mean rating. The score is not bounded, so a reward still changes for
replies that are better than the best of the data.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import mse_loss

from rl4dialog.training.resumable_trainer import ResumableTrainer


class RewardModelTrainer(ResumableTrainer):
    """A trainer with the squared error of the model's single output."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        labels = inputs["labels"]
        # The batch of an optimizer step can be split (gradient_accumulation_steps), and its last part can be smaller.
        n = len(labels) if num_items_in_batch is None else num_items_in_batch
        loss = mse_loss(outputs.logits[:, 0].float(), labels, reduction="sum") / n
        return (loss, outputs) if return_outputs else loss
