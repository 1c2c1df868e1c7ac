"""What the trainer runs: the base class of every kind of run, and that of runs on text."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from transformers import PreTrainedModel

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import CheckpointError
from rl4dialog.data.pool import Data
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import weights_hash
from rl4dialog.runs.provenance import changed_splits, data_hashes, record_contents
from rl4dialog.runs.reading import changed_conversations
from rl4dialog.runs.run_folder import read_players, read_references
from rl4dialog.runs.summary import Example, print_summary
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.conversations import check_conversations
from rl4dialog.training.building.texts import warn_of_cut_prompts
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.processes import check_agreement

_logger = logging.getLogger(__name__)


class Trainee(ABC):
    """The object to train, built from a config. All processes of a run call its methods together.

    A trainee can be stopped and resumed without any difference.

    Attributes:
        labels: Names of the evaluations before and after training in the summary.
    """

    labels = ("before training", "after training")
    _tracker: Tracker | None
    _n_iters: int
    _reference_hash: str

    @property
    @abstractmethod
    def iteration(self) -> int:
        """Number of finished iterations."""

    @property
    def n_iters(self) -> int:
        """Total number of iterations of the run."""
        return self._n_iters

    def accept_data(self, id: str, data: Data, checkpoint: Checkpoint | None) -> None:
        """Check that the data of a datapool are those with which a run began, and log how many there are."""
        check_agreement(lambda: {f"samples of datapool {id!r} with the hash": data_hashes(data)})
        if self._tracker is None:
            return
        if checkpoint is not None and (changed := changed_splits(self._tracker.run_folder, data)):
            what = f"the samples of datapool {id!r} or their order have changed since the run was started"
            advice = "restore the original files, or start a new run with another --experiment_name"
            raise CheckpointError(f"{what} (split {', '.join(changed)}): {advice}")
        _logger.info("datapool: %s", described(data))

    def accept_model(self, hash: str, data: Data, checkpoint: Checkpoint | None, what: str, advice: str) -> None:
        """Check that the initial weights are those with which a run began, and record their hash."""
        self._reference_hash = hash
        if checkpoint is not None and checkpoint.state["reference_hash"] != hash:
            raise CheckpointError(f"{what} is not that of {checkpoint.path}: {advice}")
        if self._tracker is not None:
            record_contents(self._tracker.run_folder, data, hash)

    @abstractmethod
    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        """Train until all iterations are finished or a callback, which act in this order, stops the training."""

    @abstractmethod
    def stop(self) -> None:
        """Stop before the next iteration."""

    @abstractmethod
    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        """Evaluate a split and record the results."""

    def recall(self, split: str, iteration: int) -> Evaluation:
        """Load an evaluation recorded by :meth:`evaluate`; empty in a process that does not record."""
        return Evaluation({}, []) if self._tracker is None else Evaluation(*self._tracker.recall(iteration, split))

    @abstractmethod
    def save_model(self, folder_name: str) -> Path | None:
        """Export the model to a folder of the run. Returns the folder in the main process."""

    def measure_references(self) -> None:  # noqa: B027
        """Record the test metrics of the reference replies, if there are any. All processes call this."""

    def changed_replies(self, before: Evaluation, after: Evaluation) -> list[Example]:
        """Replies that training has changed, for the summary."""
        return []

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        """Print what training has changed; in the main process."""
        assert self._tracker is not None
        root = self._tracker.run_folder.root
        print_summary(
            before.metrics,
            after.metrics,
            read_references(root),
            self.changed_replies(before, after),
            root,
            labels=self.labels,
            conversations=changed_conversations(before.predictions, after.predictions, 2),
            players=read_players(root),
        )

    @property
    def is_within_iteration(self) -> bool:
        """Whether :meth:`capture_state` captures an unfinished iteration; otherwise it needs finished ones."""
        return False

    @property
    def stops_within_iteration(self) -> bool:
        """Whether a signal can stop an unfinished iteration; otherwise training stops after it."""
        return False

    @abstractmethod
    def capture_state(self) -> dict[str, Any]:
        """Return all state except tensors as JSON values: ``iteration``, ``is_unfinished`` and the trainee's own."""

    @abstractmethod
    def save_state(self, folder: Path | None) -> None:
        """Write the tensors of the state; ``None`` in a process that only takes part in gathering them."""

    @abstractmethod
    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint."""

    def close(self) -> None:  # noqa: B027
        """Shut down everything that would outlive the training, such as environment workers."""


class TextTrainee(Trainee):
    """Holds a run's tokenizer, data, rewards, evaluator and language model."""

    def __init__(self, config: TextConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        self._tracker, self._n_iters, self.parts = tracker, config.n_iters, Assembly(config)
        self.texts = self.parts.texts
        check_conversations(config, self.texts)
        self.accept_data(config.datapool.id, self.texts.data, checkpoint)
        if config.env is not None and tracker is not None:
            warn_of_cut_prompts(self.texts)
        self.evaluator = self.parts.evaluator(tracker, has_metrics=tracker is not None)

    def build_model(self, checkpoint: Checkpoint | None = None) -> PreTrainedModel:
        """Build the language model, and record the hash of the initial weights."""
        model, advice = self.parts.initial_model, "restore its original model_name and the data of the warm start"
        what = "the initial model, also the reference of the KL penalty,"
        self.accept_model(weights_hash(model), self.texts.data, checkpoint, what, advice)
        return model

    @abstractmethod
    def generator(self) -> LMActorCriticPolicy:
        """A policy that generates with the current weights."""

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        return self.evaluator.run(self.generator(), split, iteration, reward_must_work)

    def measure_references(self) -> None:
        self.evaluator.measure_references(self.generator())

    def changed_replies(self, before: Evaluation, after: Evaluation) -> list[Example]:
        return self.evaluator.changed_replies(before, after)


def described(data: Data) -> str:
    """Number of samples of each split, with what their pool says of them."""
    return ", ".join(f"{len(pool)} {split} samples{pool.remark}" for split, pool in data.pools.items())
