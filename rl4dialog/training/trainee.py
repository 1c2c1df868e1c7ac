"""What the one trainer asks of each kind of run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from stable_baselines3.common.callbacks import BaseCallback

from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation


class Trainee(Protocol):
    """Whatever is trained, built from a config. The processes of a run call its methods together."""

    @property
    def iteration(self) -> int:
        """Iterations that are done."""

    def learn(self, n_iters: int, callbacks: Sequence[BaseCallback]) -> None:
        """Train until ``n_iters`` iterations are done, or a callback stops it.

        Args:
            n_iters: Of the whole run.
            callbacks: In the order in which they act between iterations.
        """

    def stop(self) -> None:
        """Let no further iteration begin."""

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        """Measure and record a split.

        Raises:
            RewardError: If a reward fails, and must not.
        """

    def recall(self, split: str, iteration: int) -> Evaluation:
        """What :meth:`evaluate` has recorded; empty in a process that records nothing.

        Raises:
            RunFolderError: If the records are not there.
        """

    def save_model(self, folder_name: str) -> Path | None:
        """Write the model for use into a folder of the run; returns it in the main process."""

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        """Print what training has changed; in the main process."""

    def close(self) -> None:
        """End what would outlive the training, such as processes of environments."""


@runtime_checkable
class Resumable(Protocol):
    """What can be stopped and go on later, as if nothing had happened. The processes of a run call this together."""

    def capture_state(self) -> dict[str, Any]:
        """All but tensors that decides the next iteration, ``iteration`` among it, as JSON."""

    def save_state(self, folder: Path | None) -> None:
        """Write the tensors that belong to it; ``None`` in a process that only helps to gather them."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to where the checkpoint was written.

        Raises:
            CheckpointError: If it does not fit.
        """
