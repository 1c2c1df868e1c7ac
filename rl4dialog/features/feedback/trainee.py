"""Reward model runs: models learn what people judged. An iteration is an epoch of transformers' `Trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_text import FORMAT
from rl4dialog.features.feedback import models
from rl4dialog.features.feedback.config import RewardModelConfig
from rl4dialog.features.feedback.judged_texts import (
    RATING,
    WORSE,
    JudgedTexts,
    is_comparison,
    judged_texts,
    meta_data_of,
)
from rl4dialog.runs.tracking import Tracker
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.scores.reward_models import RewardModelCard, deviations, member_scores
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.epoch_trainee import EpochTrainee
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.resumable_trainer import run_trainer
from rl4dialog.training.supervised import finite_loss


class RewardModelTrainee(EpochTrainee):
    """One model or an ensemble, with one output each, and judged texts."""

    def __init__(
        self, config: RewardModelConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None
    ) -> None:
        self._config, self._tracker, self._n_iters = config, tracker, config.n_iters
        self.data, self.tokenizer, self._max_length = models.build_judgements(config)
        self.accept_data(config.datapool.id, self.data, checkpoint)
        self._loss = models.loss_of(config, self.data)
        ratings = models.ratings_of(self.data.samples("train"))
        self._constant = float(np.mean(ratings)) if ratings else None
        self.ensemble = models.build_reward_ensemble(config, self.tokenizer, self._first_score(ratings))
        what, advice = "the initial model", "restore alg.model_name"
        self.accept_model(self.ensemble.hash(), self.data, checkpoint, what, advice)
        encode = (self.tokenizer, self._max_length)
        self.train, self.val = (models.encode_judged(self.data.samples(split), *encode) for split in ("train", "val"))
        if config.alg.ensemble > 1 and config.alg.bootstrap:
            seed = derive_seed(config.seed, "bootstrap")
            weights = models.bootstrap_weights(self.data.samples("train"), config.alg.ensemble, seed)
            self.train = [{**each, "weights": own} for each, own in zip(self.train, weights, strict=True)]
        seed = derive_seed(config.seed, "reward_model_training")
        model = cast(PreTrainedModel, self.ensemble)
        self.begin_with(model, config.alg.training_args, seed, with_val=True)

    def _first_score(self, ratings: Sequence[float]) -> float:
        """What the models predict at first: the mean rating, as log-odds with one more rating of 0.5."""
        if self._constant is None:
            return 0.0
        if self._loss.rating_loss == "squared_error":
            return self._constant
        return models.log_odds((sum(ratings) + 0.5) / (len(ratings) + 1))

    def scores(self, texts: list[str]) -> NDArray[np.float64]:
        """The score of each model for each text. Shape (number of texts, number of models)."""
        was_training, size = self.ensemble.training, self._config.train_evaluation.eval_batch_size
        device = str(self._args.device)
        members = [
            SequenceClassifier(member, self.tokenizer, device, size, self._max_length)
            for member in self.ensemble.members
        ]
        found = member_scores(members, texts)
        self.ensemble.train(was_training)
        return found

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        if self._tracker is None:
            return Evaluation({}, [])
        samples = self.data.samples(split, self._config.train_evaluation.max_eval_samples)
        by_member = self.scores(judged_texts(samples))
        scores = by_member.mean(-1).tolist()
        first, worse = scores[: len(samples)], scores[len(samples) :]
        metrics = models.agreement(first, worse, samples, self._constant, self._loss.rating_loss)
        if len(self.ensemble.members) > 1:
            metrics["ensemble/std"] = float(deviations(by_member, self._offsets(by_member)).mean())
        evaluation = Evaluation(metrics, _predictions(split, samples, first, worse))
        self._tracker.log_metrics(iteration, split, evaluation.metrics)
        self._tracker.log_predictions(iteration, split, evaluation.predictions)
        return evaluation

    def _offsets(self, by_member: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each model's scores are above the mean of all models, if no ratings fix their level. Shape (K,)."""
        means: NDArray[np.float64] = by_member.mean(0)
        return means - means.mean() if self._constant is None else np.zeros_like(means)

    def run_epochs(self) -> dict[str, Any]:
        trainer = partial(models.RewardModelTrainer, loss=self._loss)
        sets = partial(models.pad_judged, self.tokenizer), self.train, self.val
        return run_trainer(trainer, self.model, self._args, *sets, loop=self, description="Reward model")

    def training_metrics(self, state: dict[str, Any]) -> dict[str, float]:
        return {
            "train_loss": finite_loss(state, self._args),
            "train_runtime_s": state["train_runtime_s"],
            "n_examples": len(self.train),
            "n_steps": state["step"],
        }

    def save_weights(self, folder: Path) -> None:
        self.ensemble.save(folder, self.tokenizer)

    def load_weights(self, folder: Path) -> None:
        self.ensemble.load(folder)

    def save_model(self, folder_name: str) -> Path | None:
        if self._tracker is None:
            return None
        pool = self.data.pools["train"]
        assert isinstance(pool, JudgedTexts)
        by_member = self.scores(judged_texts(self.data.samples("val")))
        scores = by_member.mean(-1)
        card = RewardModelCard(
            FORMAT,
            pool.unit,
            pool.context_size,
            self.tokenizer.truncation_side,
            pool.ratings,
            pool.scale,
            mean=float(scores.mean()),
            std=float(scores.std()),
            score="rating" if self._loss.rating_loss == "squared_error" else "log_odds",
            members=len(self.ensemble.members),
            offsets=self._offsets(by_member).tolist(),
        )
        with self.config_restored(), self._tracker.run_folder.replacing_folder(folder_name) as folder:
            self.save_weights(folder)
            card.write(folder)
        return self._tracker.run_folder.path(folder_name)


def _predictions(
    split: str, samples: Sequence[Sample], first: Sequence[float], worse: Sequence[float]
) -> list[dict[str, Any]]:
    scores_of_worse, found = iter(worse), []
    for sample, score in zip(samples, first, strict=True):
        record: dict[str, Any] = {
            **{"split_name": split, "sample_id": sample.id, "prompt_text": sample.prompt_or_input_text},
            **{"generated_text": "", "ref_text": ""},
        }
        if is_comparison(sample):
            other = next(scores_of_worse)
            text = str(meta_data_of(sample)[WORSE])
            record |= {WORSE: text, "score": score, "score_of_worse": other, "margin": score - other}
        else:
            record |= {RATING: meta_data_of(sample)[RATING], "score": score}
        found.append(record)
    return found
