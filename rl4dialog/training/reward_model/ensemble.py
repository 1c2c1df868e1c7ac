"""The models of a reward model run: one, or several whose mean is the score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, cat, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.saving import load_language_model_weights
from rl4dialog.scores.classifiers import class_logits
from rl4dialog.scores.reward_models import member_folder


class RewardEnsemble(nn.Module):
    """Models with one score each, which read the same texts.

    Args:
        members: The models; at least one.

    Attributes:
        config: Config of the first model, under the name that transformers' `Trainer` expects.
    """

    def __init__(self, members: Sequence[PreTrainedModel]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.config: Any = members[0].config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """Score texts that are padded on the right.

        Args:
            input_ids: Token ids. Shape (B, longest).
            attention_mask: 1 at real tokens. Shape (B, longest).
            kwargs: Ignored; `Trainer` normalizes losses over accumulated batches only for models that accept others.

        Returns:
            The score of each model. Shape (B, K).
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return cat([class_logits(member, inputs) for member in self.members], dim=-1)

    @property
    def _models(self) -> list[PreTrainedModel]:
        return [cast(PreTrainedModel, member) for member in self.members]

    def hash(self) -> str:
        """Hash of the weights; for one model, that of the model itself."""
        return weights_hash(self.members[0] if len(self.members) == 1 else self)

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save each model with its tokenizer, in the layout that `load_reward_model` reads."""
        for number, member in enumerate(self._models):
            place = member_folder(folder, number, len(self.members))
            member.save_pretrained(place)
            tokenizer.save_pretrained(place)

    def load(self, folder: Path) -> None:
        """Load weights saved by :meth:`save`."""
        for number, member in enumerate(self._models):
            place = member_folder(folder, number, len(self.members))
            load_language_model_weights(member, place, AutoModelForSequenceClassification, None)
