"""Loads the policy of a turn-level run, without training it further."""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.policies import BasePolicy

from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.turn_level_config import TurnLevelConfig
from rl4dialog.envs.sb3_workers import close
from rl4dialog.inference.saved_run import find_checkpoint, read_run_config
from rl4dialog.policies.plain import load_plain_policy
from rl4dialog.runs.run_folder import MODEL_FOLDER
from rl4dialog.training.building.turn_level import build_turn_level_algorithm
from rl4dialog.training.random_state import random_states_kept


def load_agent(run: str | Path, checkpoint: str | int | None = None, trust: bool = False) -> BasePolicy:
    """Load the policy of a run in an environment other than ``text_generation``.

    Args:
        run: The run folder, which may have been moved.
        checkpoint: ``None`` for the final policy; otherwise an iteration number, ``"last"`` or ``"best"``.
        trust: Whether to allow code that the run's config executes: its ``imports``, and the module of an ``env.id``.

    Returns:
        stable-baselines3's policy: ``policy.predict(observation, deterministic=True)`` returns an action.

    Raises:
        RunFolderError: If the folder contains no run, no policy, or no such checkpoint.
        ConfigError: If it is a run of a language model, its config executes code without ``trust``, or the environment
            cannot be built.
        ModelError: If the weights do not match.
    """
    folder = Path(run).expanduser()
    config = read_run_config(folder, trust=trust)
    if not isinstance(config, TurnLevelConfig):
        raise ConfigError(f"{folder} is a run of a language model; use rl4dialog.load_policy")
    model = (folder if checkpoint is None else find_checkpoint(folder, checkpoint)) / MODEL_FOLDER
    if not model.is_dir():
        raise RunFolderError(f"{model} is missing: the run is not complete; load one of its checkpoints instead")
    config.env.vec_env = "dummy"
    with random_states_kept():  # stable-baselines3 seeds all generators
        algorithm = build_turn_level_algorithm(config, buffer_size=config.env.n_envs, device="auto")
    close(algorithm.env)
    load_plain_policy(algorithm.policy, model)
    algorithm.policy.set_training_mode(False)
    return algorithm.policy  # type: ignore[no-any-return]
