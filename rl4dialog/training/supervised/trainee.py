"""Supervised runs on the references: one iteration of transformers' `Trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from rl4dialog.core.config import SupervisedConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import LoRA
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.examples import build_supervised_examples
from rl4dialog.training.building.inference_policy import build_inference_policy
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.supervised.fine_tuning import train_supervised
from rl4dialog.training.text_trainee import TextTrainee


class SupervisedTrainee(TextTrainee):
    """A language model and its training examples. Supervised runs have no checkpoints.

    Args:
        config: Validated config.
        tracker: Records the results.
        checkpoint: Always ``None``.
    """

    _tracker: Tracker

    def __init__(self, config: SupervisedConfig, tracker: Tracker, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(config, tracker, checkpoint)
        self._config, self._n_done = config, 0
        self.model = self.build_model(config)
        # Before the first evaluation, because invalid examples raise an error.
        self.examples = build_supervised_examples(config, self.texts, self.model.config)
        self.lora = LoRA(self.model, config.lora) if config.lora is not None else None

    @property
    def iteration(self) -> int:
        return self._n_done

    def generator(self) -> LMActorCriticPolicy:
        texts = self.texts
        return build_inference_policy(self._config, texts.tokenizer, texts.data.turn_marker, self.model, texts.lengths)

    def learn(self, n_iters: int, callbacks: Sequence[BaseCallback]) -> None:
        info = train_supervised(
            self.model,
            self.texts.tokenizer,
            self.examples,
            training_args={"bf16": self._config.precision == "bf16", **self._config.alg.training_args},
            seed=derive_seed(self._config.seed, "supervised"),
            output_dir=self._tracker.run_folder.path("checkpoints"),
        )
        self._tracker.log_training_infos(info)
        self._n_done = n_iters

    def stop(self) -> None:
        pass  # never called

    def save_model(self, folder_name: str) -> Path:
        return self._tracker.save_auto_model(self.model, self.texts.tokenizer, self.lora, folder_name=folder_name)
