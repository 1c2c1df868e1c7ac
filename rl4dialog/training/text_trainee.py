"""Base class of runs that train a language model on text."""

from __future__ import annotations

from abc import abstractmethod

from transformers import PreTrainedModel

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import CheckpointError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.runs.provenance import changed_splits, record_contents
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.conversation_checks import check_conversations
from rl4dialog.training.building.environments import build_conversing
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.metrics import build_metrics
from rl4dialog.training.building.rewards import build_reward_columns, build_scorer
from rl4dialog.training.building.texts import build_texts
from rl4dialog.training.building.toolkit import build_toolkit
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation, Evaluator
from rl4dialog.training.trainee import Trainee


class TextTrainee(Trainee):
    """Holds a run's tokenizer, data, rewards, evaluator and language model.

    Args:
        config: Validated config.
        tracker: Records the results; ``None`` in all processes but the main one.
        checkpoint: Checkpoint to resume from, if any.

    Raises:
        CheckpointError: If the data differ from those at the start of the run. The run folder is left unchanged.

    Attributes:
        labels: Names of the evaluations before and after training in the summary.
    """

    labels = ("before", "after")

    def __init__(self, config: TextConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        self._tracker, self._n_iters = tracker, config.n_iters
        self.texts = build_texts(config)
        check_conversations(config, self.texts)
        folder = tracker.run_folder if tracker is not None else None
        if checkpoint is not None and folder is not None and (changed := changed_splits(folder, self.texts.data)):
            raise CheckpointError(
                f"the samples of datapool {config.datapool.id!r} or their order have changed since the run in "
                f"{folder.root} was started (split {', '.join(changed)}): restore the original files, or start a "
                f"new run with another --experiment_name"
            )
        toolkit = build_toolkit(config, self.texts.tokenizer, self.texts.data)
        metrics = []
        if tracker is not None:
            sizes = ", ".join(f"{len(pool)} {split} samples" for split, pool in self.texts.data.pools.items())
            tracker.log_info(f"datapool: {sizes}")
            metrics = build_metrics(config, toolkit)
        self.scorer = build_scorer(config, toolkit)
        rewards = build_reward_columns(config, self.scorer)
        conversing = build_conversing(config, self.texts, self.scorer)
        self.evaluator = Evaluator(config, self.texts, metrics, tracker, rewards, conversing)

    @property
    def n_iters(self) -> int:
        return self._n_iters

    def build_model(self, config: TextConfig, checkpoint: Checkpoint | None = None) -> PreTrainedModel:
        """Build the language model, and record the hash of the initial weights."""
        model = build_language_model(config, self.texts)
        self._reference_hash = weights_hash(model)
        if checkpoint is not None and checkpoint.state["reference_hash"] != self._reference_hash:
            raise CheckpointError(
                f"the initial model of the run, which is also the reference of the KL penalty, is not that of "
                f"{checkpoint.path}: restore the original alg.policy.args.model_name and the data of the warm start"
            )
        if self._tracker is not None:
            record_contents(self._tracker.run_folder, self.texts.data, self._reference_hash)
        return model

    @abstractmethod
    def generator(self) -> LMActorCriticPolicy:
        """A policy that generates with the current weights."""

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        return self.evaluator.run(self.generator(), split, iteration, reward_must_work)

    def recall(self, split: str, iteration: int) -> Evaluation:
        return self.evaluator.recall(split, iteration)

    def measure_references(self) -> None:
        self.evaluator.measure_references(self.generator())

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        self.evaluator.summarize(before, after, self.labels)

    def close(self) -> None:
        pass
