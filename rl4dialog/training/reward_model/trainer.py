"""The trainer of reward models: the mean loss over the judgements of a batch, for each model of an ensemble."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rl4dialog.functional.reward_model_losses import RewardModelLoss
from rl4dialog.training.resumable_trainer import ResumableTrainer
from rl4dialog.training.reward_model.ensemble import RewardEnsemble


class RewardModelTrainer(ResumableTrainer):
    """Trains all models of an ensemble in the same steps, each as if it were alone.

    Args:
        args: Arguments of `ResumableTrainer`.
        loss: The loss.
        kwargs: The same.
    """

    model: RewardEnsemble

    def __init__(self, *args: Any, loss: RewardModelLoss, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loss = loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        scores = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        labels = inputs["labels"]
        # The batch of an optimizer step can be split (gradient_accumulation_steps), and its last part can be smaller.
        n = len(labels) if num_items_in_batch is None else num_items_in_batch
        losses = self._loss(scores.float(), labels, inputs["is_comparison"], inputs.get("weights")) / n
        # The value is the mean over the models, and the gradient that of the sum: each model has its own.
        loss = losses.sum() - losses.detach().sum() + losses.detach().mean()
        return (loss, scores) if return_outputs else loss

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Clip the gradient of each model; returns the largest norm."""
        norms = [clip_grad_norm_(each.parameters(), self.args.max_grad_norm) for each in self.model.members]
        return max(norms)
