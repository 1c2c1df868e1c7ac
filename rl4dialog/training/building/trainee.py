"""What a run trains, by its kind."""

from __future__ import annotations

from rl4dialog.core.config import OnPolicyConfig, RunConfig, SupervisedConfig
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.on_policy.trainee import OnPolicyTrainee
from rl4dialog.training.supervised.trainee import SupervisedTrainee
from rl4dialog.training.trainee import Trainee


def build_trainee(config: RunConfig, tracker: Tracker | None, checkpoint: Checkpoint | None) -> Trainee:
    """Build tokenizer, data, model and all else that a run needs.

    Raises:
        RL4DialogError: If a part cannot be built, or the checkpoint is of a run with other parts.
    """
    if isinstance(config, SupervisedConfig) and tracker is not None:
        return SupervisedTrainee(config, tracker)
    assert isinstance(config, OnPolicyConfig)
    return OnPolicyTrainee(config, tracker, checkpoint)
