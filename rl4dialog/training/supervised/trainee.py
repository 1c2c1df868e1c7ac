"""Supervised runs on the references. An iteration is an epoch of transformers' `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl4dialog.core.config import SupervisedConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.saving import load_language_model_weights, save_language_model
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.examples import build_supervised_examples
from rl4dialog.training.building.policy import build_inference_policy, policy_class
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.epoch_trainee import EpochTrainee
from rl4dialog.training.supervised.fine_tuning import (
    build_training_arguments,
    run_supervised_trainer,
    supervised_metrics,
)
from rl4dialog.training.text_trainee import TextTrainee


class SupervisedTrainee(EpochTrainee, TextTrainee):
    """A language model and its training examples.

    Args:
        config: Validated config.
        tracker: Records the results.
        checkpoint: Checkpoint to resume from, if any.
    """

    _tracker: Tracker

    def __init__(self, config: SupervisedConfig, tracker: Tracker, checkpoint: Checkpoint | None = None) -> None:
        TextTrainee.__init__(self, config, tracker, checkpoint)
        self._config = config
        model = self.build_model(config, checkpoint)
        # Before the first evaluation, because invalid examples raise an error.
        self.examples = build_supervised_examples(config, self.texts, model.config)
        self.lora = LoRA(model, config.lora) if config.lora is not None else None
        args = build_training_arguments(
            config.training_args,
            tracker.run_folder.path(CHECKPOINTS_FOLDER),
            derive_seed(config.seed, "supervised"),
            with_val=self.examples.val is not None,
            by_length=not self.examples.of_dialogues,
        )
        self.begin_with(model, args, config.n_iters, self._reference_hash)

    def generator(self) -> LMActorCriticPolicy:
        texts = self.texts
        return build_inference_policy(self._config, texts.tokenizer, texts.data.turn_marker, self.model, texts.lengths)

    def run_epochs(self) -> dict[str, Any]:
        return run_supervised_trainer(self.model, self.texts.tokenizer, self.examples, self._args, loop=self)

    def training_metrics(self, state: dict[str, Any]) -> dict[str, float]:
        return supervised_metrics(self.model, self.texts.tokenizer, self.examples, self._args, state)

    def save_weights(self, folder: Path) -> None:
        save_language_model(self.model, folder, self.lora)
        self.texts.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        load_language_model_weights(self.model, folder, policy_class(self._config).auto_class, self.lora)

    def save_model(self, folder_name: str) -> Path:
        with self.config_restored():
            return self._tracker.save_auto_model(self.model, self.texts.tokenizer, self.lora, folder_name=folder_name)
