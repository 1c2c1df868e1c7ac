"""What all kinds of runs that train a language model on texts share."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from rl4dialog.core.config import RunConfig
from rl4dialog.core.errors import CheckpointError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.runs.provenance import changed_splits, record_contents
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.lengths import run_lengths
from rl4dialog.training.building.metrics import build_metrics
from rl4dialog.training.building.rewards import build_reward_columns, build_reward_parts
from rl4dialog.training.building.tokenizer import build_run_tokenizer
from rl4dialog.training.building.toolkit import build_toolkit
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation, Evaluator


class TextTrainee:
    """Tokenizer, data, rewards and evaluator of a run, and its language model.

    Args:
        config: Checked.
        tracker: Receives what is measured; ``None`` in a process that is not the main one.
        checkpoint: Where the run continues, if it does.

    Raises:
        CheckpointError: If the data are not those that the run began with; the run folder is then as it was.
    """

    labels = ("before", "after")

    def __init__(self, config: RunConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        self._tracker = tracker
        self.tokenizer, self.data = build_run_tokenizer(config)
        folder = tracker.run_folder if tracker is not None else None
        if checkpoint is not None and folder is not None and (changed := changed_splits(folder, self.data)):
            raise CheckpointError(
                f"datapool {config.datapool.id!r} does not give the samples that the run in {folder.root} was "
                f"begun with, in that order (split {', '.join(changed)}): give its files as they were, or begin "
                f"another run with another --experiment_name"
            )
        self.lengths = run_lengths(config, self.tokenizer, self.data)
        toolkit = build_toolkit(config, self.tokenizer, self.data)
        metrics = []
        if tracker is not None:
            sizes = ", ".join(f"{len(pool)} {split} samples" for split, pool in self.data.pools.items())
            tracker.log_info(f"datapool: {sizes}")
            metrics = build_metrics(config, toolkit)
        self.reward_parts = build_reward_parts(config, toolkit) if config.uses_reward else []
        rewards = build_reward_columns(config, toolkit, self.reward_parts)
        self.evaluator = Evaluator(config, self.data, self.lengths, metrics, tracker, rewards)

    def build_model(self, config: RunConfig, checkpoint: Checkpoint | None = None) -> PreTrainedModel:
        """Build the language model, and record what the run began with.

        Raises:
            CheckpointError: If it is not the model that the run began with; the run folder is then as it was.
        """
        model = build_language_model(config, self.tokenizer, self.data, self.lengths)
        self._reference_hash = weights_hash(model)
        if checkpoint is not None and checkpoint.state["reference_hash"] != self._reference_hash:
            raise CheckpointError(
                f"the model that the run began with, and with it the reference of the KL penalty, is not the one of "
                f"{checkpoint.path} any more: give alg.policy.args.model_name and the warm start's data as they were"
            )
        if self._tracker is not None:
            record_contents(self._tracker.run_folder, self.data, self._reference_hash)
        return model

    def generator(self) -> LMActorCriticPolicy:
        """The policy that generates with the model as it is now."""
        raise NotImplementedError

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        """Measure the replies to the prompts of a split."""
        return self.evaluator.run(self.generator(), split, iteration, reward_must_work)

    def recall(self, split: str, iteration: int) -> Evaluation:
        """What :meth:`evaluate` has recorded."""
        return self.evaluator.recall(split, iteration)

    def save_model(self, folder_name: str) -> Path | None:
        """Write the language model and its tokenizer, as transformers reads them."""
        raise NotImplementedError

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        """Print metrics and replies before and after training."""
        self.evaluator.summarize(before, after, self.generator(), self.labels)

    def close(self) -> None:
        """Nothing is left open."""
