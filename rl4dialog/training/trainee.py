"""Interface between the trainer and each kind of run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from stable_baselines3.common.callbacks import BaseCallback

from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation


class Trainee(Protocol):
    """The object to train, built from a config. All processes of a run call its methods together.

    A trainee can be stopped and resumed without any difference.
    """

    @property
    def iteration(self) -> int:
        """Number of finished iterations."""

    @property
    def n_iters(self) -> int:
        """Total number of iterations of the run."""

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        """Train until all iterations are finished or a callback stops the training.

        Args:
            callbacks: Callbacks in the order in which they act between iterations.
        """

    def stop(self) -> None:
        """Stop before the next iteration."""

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        """Evaluate a split and record the results."""

    def recall(self, split: str, iteration: int) -> Evaluation:
        """Load an evaluation recorded by :meth:`evaluate`; empty in a process that does not record."""

    def save_model(self, folder_name: str) -> Path | None:
        """Export the model to a folder of the run. Returns the folder in the main process."""

    def measure_references(self) -> None:
        """Record the test metrics of the reference replies, if there are any; in the main process."""

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        """Print what training has changed; in the main process."""

    @property
    def is_within_iteration(self) -> bool:
        """Whether :meth:`capture_state` captures an unfinished iteration; otherwise it needs finished ones."""

    @property
    def stops_within_iteration(self) -> bool:
        """Whether a signal can stop an unfinished iteration; otherwise training stops after it."""

    def capture_state(self) -> dict[str, Any]:
        """Return all state except tensors as JSON values: ``iteration``, ``is_unfinished`` and the trainee's own."""

    def save_state(self, folder: Path | None) -> None:
        """Write the tensors of the state; ``None`` in a process that only takes part in gathering them."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint."""

    def close(self) -> None:
        """Shut down everything that would outlive the training, such as environment workers."""
