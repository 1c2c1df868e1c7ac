"""Resuming: finds a run's latest checkpoint and checks that the config matches."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from rl4dialog.core.config import RunConfig, parse_config
from rl4dialog.core.config_notes import SUBPROC
from rl4dialog.core.errors import CheckpointError, ConfigError, RunFolderError
from rl4dialog.core.files import json_object
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.results import is_complete
from rl4dialog.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    TRAINING_INFO_FILE,
    RunFolder,
    predictions_since,
)
from rl4dialog.training.checkpoint import Checkpoint, newest_checkpoint, newest_folders, remove_checkpoints_after

_logger = logging.getLogger(__name__)
_MAX_SHOWN = 8  # changed keys in a message
# Keys that may change on resume: they affect evaluation and saving, but not training.
_FREE = (
    *("train_evaluation", "logging", "callbacks", "reward_fn.timeout_s"),
    *(f"env.{key}" for key in ("vec_env", "n_workers", "on_worker_death", "max_restarts")),
)


def is_done(root: Path, config: RunConfig) -> bool:
    """Whether a run has finished, and the config does not extend it; warns of changes that come too late."""
    if not is_complete(root):
        return False
    stored = _check_same(root, config)
    if config.n_iters > stored.n_iters:
        return False
    if late := [change for key, change in _changes(stored, config) if key.startswith("train_evaluation.")]:
        _logger.warning("the run in %s is complete, so this has no effect: %s", root, "; ".join(late))
    return True


def has_trained(root: Path) -> bool:
    """Whether the run in a folder has finished an iteration or saved a model."""
    later = any(folder.name != "iteration_000000" for folder in newest_folders(root)) or predictions_since(root, 1)
    return bool(later) or any((root / name).exists() for name in (RESULT_FILE, MODEL_FOLDER, TRAINING_INFO_FILE))


def find_run(root: Path, config: RunConfig, mode: str | None) -> Checkpoint | None:
    """Find the checkpoint to resume a run from.

    Args:
        root: The run's folder.
        config: Config of the resumed run.
        mode: ``always``, or ``auto`` to start a new run if there is nothing to resume. ``None`` does so too, but
            replaces no run that has trained.

    Returns:
        ``None`` to start a new run, replacing the remains of one that did not finish and has no valid checkpoint, or,
        whatever its config, ended before its first iteration.
    """
    if not (root / CONFIG_FILE).is_file():
        if mode != "always":
            return None
        raise RunFolderError(f"no run to resume in {root}; leave out --resume, or use --resume auto, to start one")
    may_replace = mode != "always" and not has_trained(root)
    try:
        _check_same(root, config)
    except (ConfigError, RunFolderError):
        if not may_replace:
            raise
        _logger.warning("the run in %s ended before its first iteration; this one replaces it", root)
        return None
    checkpoint = newest_checkpoint(root)
    if checkpoint is None:
        if may_replace or (mode == "auto" and not is_complete(root)):
            _logger.warning("the run in %s has no valid checkpoint yet and starts from the beginning", root)
            return None
        raise CheckpointError(
            f"the run in {root} has no valid checkpoint to resume from (set train_evaluation.save_every to save some); "
            f"start a new run with another --experiment_name, or restart this one with --overwrite instead of --resume"
        )
    if checkpoint.iteration > config.n_iters:
        raise CheckpointError(
            f"{checkpoint.path} is a checkpoint of iteration {checkpoint.iteration}, but train_evaluation.n_iters is "
            f"{config.n_iters}; set it to at least {checkpoint.iteration}"
        )
    return checkpoint


def go_back_to(checkpoint: Checkpoint, run_folder: RunFolder) -> None:
    """Undo everything that the run wrote after a checkpoint."""
    # Within an iteration, the evaluation after the previous one is already done.
    run_folder.cut_back(checkpoint.state["log_sizes"], checkpoint.iteration + checkpoint.is_unfinished)
    remove_checkpoints_after(run_folder.root, checkpoint)
    for left_over in run_folder.path(CHECKPOINTS_FOLDER).glob(".*.tmp"):
        shutil.rmtree(left_over, ignore_errors=True)


def _stored_config(root: Path) -> RunConfig:
    path = root / CONFIG_FILE
    try:
        return parse_config(json_object(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, ConfigError) as error:
        raise RunFolderError(
            f"{path} cannot be read, so --resume cannot continue the run: {error}; pass --overwrite to replace it, or "
            f"choose another --experiment_name"
        ) from error


def _changes(stored: RunConfig, config: RunConfig) -> list[tuple[str, str]]:
    """The keys of two configs that differ, each with a description."""
    before, now = (flatten(each.model_dump(mode="json")) for each in (stored, config))
    return [
        (key, f"{key} was {before.get(key)!r} and is now {now.get(key)!r}")
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def _check_same(root: Path, config: RunConfig) -> RunConfig:
    """Check that a config and the stored one define the same training; return the latter."""
    stored = _stored_config(root)
    if stored.env is not None and config.env is not None and stored.env.vec_env == "subproc" != config.env.vec_env:
        _logger.warning("%s. The run in %s was started with it and resumes with %s", SUBPROC, root, config.env.vec_env)
    changed = [
        change
        for key, change in _changes(stored, config)
        if not any(key == free or key.startswith(free + ".") for free in _FREE)
    ]
    if changed:
        changed[_MAX_SHOWN:] = [f"and {n} more"] if (n := len(changed) - _MAX_SHOWN) > 0 else []
        raise ConfigError(
            f"the run in {root} was started with a different config: {'; '.join(changed)}. Continue it with its own "
            f"config (--resume), replace it with --overwrite, or start a new run with another --experiment_name (in a "
            f"benchmark, with another --output_path)"
        )
    return stored
