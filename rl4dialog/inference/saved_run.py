"""Reads configs and checkpoints from run folders."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.config import RunConfig, TextConfig, load_config, text_config
from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.plugins import load_entry_points, load_imports
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.runs.provenance import config_folder
from rl4dialog.runs.results import check_is_run, is_complete
from rl4dialog.runs.run_folder import CONFIG_FILE, MODEL_FOLDER
from rl4dialog.runs.trust import refuse_code
from rl4dialog.training.checkpoint import (
    best_checkpoint,
    checkpoint_folders,
    newest_checkpoint,
    read_checkpoint,
)

_logger = logging.getLogger(__name__)


def read_run_config(run: Path, overrides: Sequence[str] = (), trust: bool = False, trains: bool = False) -> RunConfig:
    """Read the resolved config of a run, and load its imports.

    Args:
        run: The run folder, possibly of unknown origin.
        overrides: Overrides as in ``--set``.
        trust: Whether to allow the code that the config executes, and the addresses and files that it names.
        trains: Whether the config will be used for training.
    """
    check_is_run(run)
    config = load_config(run / CONFIG_FILE, overrides)
    if not trust:
        refuse_code(config.model_dump(mode="json"), run, load_yaml(run / CONFIG_FILE), trains)
    load_entry_points()
    load_imports(config.imports, config_folder(run))
    return config


def read_text_config(run: Path, trust: bool = False) -> TextConfig:
    """Read the resolved config of a run on text whose model is used without its other components.

    Its imports are loaded only with ``trust``.
    """
    if trust:
        return text_config(read_run_config(run, trust=True))
    check_is_run(run)
    config = text_config(load_config(run / CONFIG_FILE))
    load_entry_points()
    return config


def find_checkpoint(run: Path, checkpoint: str | int = "last") -> Path:
    """Return the folder of a checkpoint: an iteration by number, the latest valid one (``"last"``), or the ``"best"``.

    Raises:
        RunFolderError: If there is no such checkpoint; the message lists the existing ones.
        CheckpointError: If it is damaged.
    """
    number: int | None = None
    if checkpoint == "last":
        newest = newest_checkpoint(run)
        if newest is not None:
            return newest.path
    elif checkpoint == "best":
        best = best_checkpoint(run)
        number = None if best is None else int(best["iteration"])
    elif re.fullmatch(r"\d+", str(checkpoint)):
        number = int(checkpoint)
    folders = checkpoint_folders(run)
    if number not in folders:
        known = f"available iterations: {', '.join(map(str, folders))}" if folders else "there are none"
        raise RunFolderError(f"{run} has no checkpoint {checkpoint!r} ({known})")
    return read_checkpoint(folders[number]).path


def model_folder(run: Path, checkpoint: Path | None = None) -> Path:
    """Return the folder of the model in a checkpoint, or of the final one; says if there is a newer one."""
    folder = (checkpoint or run) / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is missing: the run is not complete; load one of its checkpoints instead")
    if checkpoint is None and not is_complete(run):
        _logger.warning(
            "the run in %s is not complete: its model/ is from an earlier end, before it was resumed; the latest "
            "checkpoint is newer (--checkpoint last)",
            run,
        )
    return folder
