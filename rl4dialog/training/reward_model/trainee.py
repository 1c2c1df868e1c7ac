"""Reward model runs: a model learns to predict human ratings. An iteration is an epoch of transformers' `Trainer`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification

from rl4dialog.core.errors import CheckpointError
from rl4dialog.core.reward_model_config import RewardModelConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.dialogue_text import FORMAT
from rl4dialog.data.rated_dialogues import RatedDialogues
from rl4dialog.metrics.reward_model import RewardModelCard
from rl4dialog.metrics.sequence_classifier import SequenceClassifier
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.saving import load_language_model_weights
from rl4dialog.runs.progress import duration, say
from rl4dialog.runs.provenance import changed_splits, record_contents
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER
from rl4dialog.runs.summary import print_summary
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.reward_model import (
    build_rated_data,
    build_reward_model,
    build_reward_model_tokenizer,
    encode_rated,
    longest_text,
)
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.epoch_trainee import EpochTrainee
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.resumable_trainer import run_trainer
from rl4dialog.training.reward_model.evaluation import agreement, ratings_of
from rl4dialog.training.reward_model.trainer import RewardModelTrainer
from rl4dialog.training.supervised.fine_tuning import build_training_arguments, finite_loss
from rl4dialog.training.trainer_support import pad_labelled_texts


class RewardModelTrainee(EpochTrainee):
    """A model with one output, and rated texts.

    Args:
        config: Validated config.
        tracker: Records the results.
        checkpoint: Checkpoint to resume from, if any.

    Raises:
        CheckpointError: If the data or the initial model differ from those at the start of the run.
    """

    def __init__(self, config: RewardModelConfig, tracker: Tracker, checkpoint: Checkpoint | None = None) -> None:
        self._config, self._tracker = config, tracker
        self.data = build_rated_data(config)
        if checkpoint is not None and (changed := changed_splits(tracker.run_folder, self.data)):
            raise CheckpointError(
                f"the ratings of datapool {config.datapool.id!r} or their order have changed since the run was "
                f"started (split {', '.join(changed)}): restore the original files, or start a new run"
            )
        self.tokenizer = build_reward_model_tokenizer(config, self.data)
        self._constant = float(np.mean(ratings_of(self.data.samples("train"))))
        model = build_reward_model(config, self.tokenizer, self._constant)
        initial = weights_hash(model)
        if checkpoint is not None and checkpoint.state["reference_hash"] != initial:
            raise CheckpointError(f"the initial model is not that of {checkpoint.path}: restore alg.model_name")
        record_contents(tracker.run_folder, self.data, initial)
        sizes = ", ".join(f"{len(pool)} {split} samples" for split, pool in self.data.pools.items())
        tracker.log_info(f"datapool: {sizes}")
        self._max_length = longest_text(config, self.tokenizer)
        encode = (self.tokenizer, self._max_length)
        self.train, self.val = (encode_rated(self.data.samples(split), *encode) for split in ("train", "val"))
        args = build_training_arguments(
            config.alg.training_args,
            tracker.run_folder.path(CHECKPOINTS_FOLDER),
            derive_seed(config.seed, "reward_model_training"),
            with_val=True,
        )
        self.begin_with(model, args, config.n_iters, initial)

    def scores(self, split: str, limit: int | None = None) -> list[float]:
        """The model's scores of a split, in order."""
        was_training = self.model.training
        classifier = SequenceClassifier(
            self.model,
            self.tokenizer,
            str(self._args.device),
            self._config.train_evaluation.eval_batch_size,
            self._max_length,
        )
        texts = [sample.prompt_or_input_text for sample in self.data.samples(split, limit)]
        found: list[float] = classifier.logits(texts)[:, 0].tolist()
        self.model.train(was_training)
        return found

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        started, limit = time.perf_counter(), self._config.train_evaluation.max_eval_samples
        samples, scores = self.data.samples(split, limit), self.scores(split, limit)
        predictions = [
            {
                "split_name": split,
                "sample_id": sample.id,
                "prompt_text": sample.prompt_or_input_text,
                "generated_text": "",
                "ref_text": "",
                "rating": rating,
                "score": score,
            }
            for sample, rating, score in zip(samples, ratings_of(samples), scores, strict=True)
        ]
        evaluation = Evaluation(agreement(scores, samples, self._constant), predictions)
        self._tracker.log_metrics(iteration, split, evaluation.metrics)
        self._tracker.log_predictions(iteration, split, predictions)
        numbers = "".join(f"{key} {value:.3f}, " for key, value in evaluation.metrics.items())
        say(f"evaluation of {split} after iteration {iteration}: {numbers}{duration(time.perf_counter() - started)}")
        return evaluation

    def recall(self, split: str, iteration: int) -> Evaluation:
        return Evaluation(*self._tracker.recall(iteration, split))

    def run_epochs(self) -> dict[str, Any]:
        return run_trainer(
            RewardModelTrainer,
            self.model,
            self._args,
            partial(pad_labelled_texts, self.tokenizer),
            self.train,
            self.val,
            loop=self,
            description="Reward model",
        )

    def training_metrics(self, state: dict[str, Any]) -> dict[str, float]:
        return {
            "train_loss": finite_loss(state, self._args),
            "train_runtime_s": state["train_runtime_s"],
            "n_examples": len(self.train),
            "n_steps": state["step"],
        }

    def save_weights(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        load_language_model_weights(self.model, folder, AutoModelForSequenceClassification, None)

    def save_model(self, folder_name: str) -> Path:
        pool, scores = self.data.pools["train"], self.scores("val")
        assert isinstance(pool, RatedDialogues)
        card = RewardModelCard(
            FORMAT,
            pool.unit,
            pool.context_size,
            self.tokenizer.truncation_side,
            pool.ratings,
            pool.scale,
            mean=float(np.mean(scores)),
            std=float(np.std(scores)),
        )
        with self.config_restored(), self._tracker.run_folder.replacing_folder(folder_name) as folder:
            self.save_weights(folder)
            card.write(folder)
        return self._tracker.run_folder.path(folder_name)

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        root = self._tracker.run_folder.root
        print_summary(before.metrics, after.metrics, None, [], root, labels=("before training", "after training"))
