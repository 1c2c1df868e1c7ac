"""Runs that learn from logged conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.core.config import OfflineConfig
from rl4dialog.core.errors import CheckpointError
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.offline import build_offline_algorithm
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.policy_state import capture_policy_state, restore_policy_state, state_of_process
from rl4dialog.training.policy_trainee import PolicyTrainee
from rl4dialog.training.random_state import set_random_state
from rl4dialog.training.watch.check import RunFacts


class OfflineTrainee(PolicyTrainee):
    """An algorithm over a log of conversations.

    Args:
        config: Validated config.
        tracker: As for :class:`PolicyTrainee`.
        checkpoint: Checkpoint to resume from, if any.
    """

    labels = ("before training", "after training")

    def __init__(self, config: OfflineConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(config, tracker, checkpoint)
        model = self.build_model(config, checkpoint)
        end_of_turn = build_end_of_turn(config, self.texts.tokenizer, self.texts.data.turn_marker, model)
        self.algorithm = build_offline_algorithm(config, self.texts, model, end_of_turn, self.scorer)
        if checkpoint is not None and checkpoint.state["log_hash"] != self.algorithm.log.hash:
            raise CheckpointError(
                f"the logged conversations of datapool {config.datapool.id!r}, or how they are encoded, have changed "
                f"since {checkpoint.path} was written: restore the original files and package, or start a new run "
                f"with another --experiment_name"
            )
        self.derive = rates_and_shown
        self.follow(RunFacts(precision=config.precision, values_are_returns=self.algorithm.values_are_returns))

    @property
    def stops_within_iteration(self) -> bool:
        return False

    def capture_state(self) -> dict[str, Any]:
        of_run = {
            **self.algorithm.training_state(),
            "reference_hash": self._reference_hash,
            "log_hash": self.algorithm.log.hash,
        }
        return capture_policy_state(self.algorithm, of_run)

    def restore(self, checkpoint: Checkpoint) -> None:
        own = state_of_process(checkpoint)
        restore_policy_state(self.algorithm, checkpoint)
        self.algorithm.load_training_state(checkpoint.state)
        set_random_state(own["random"])


def rates_and_shown(rollout: Mapping[str, Any], seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Throughput of an iteration, and the values to display in the progress bar."""
    tokens_per_s = rollout["rollout/tokens"] / seconds
    shown = {"epoch": f"{rollout['rollout/epoch']:.2f}", "tokens/s": f"{tokens_per_s:.0f}"}
    return {"time/tokens_per_s": tokens_per_s}, shown
