"""What a run folder holds: config, checkpoints and models.

``model/`` contains only the trained model, and beside it values of tokens if they guide it; checkpoints contain the
rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import RunConfig, TextConfig, load_config, text_config
from rl4dialog.core.errors import ConfigError, ModelError, RL4DialogError, RunFolderError
from rl4dialog.core.plugins import load_entry_points, load_imports
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.policies.saving import MASK_FILE, weights_hash
from rl4dialog.runs.provenance import config_folder, read_provenance
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER, CONFIG_FILE, MODEL_FOLDER, check_is_run, is_complete
from rl4dialog.runs.trust import refuse_code
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.policy import is_guided
from rl4dialog.training.checkpoint import best_checkpoint, checkpoint_folders, newest_checkpoint, read_checkpoint

_logger = logging.getLogger(__name__)


def read_run_config(run: Path, overrides: Sequence[str] = (), trust: bool = False, trains: bool = False) -> RunConfig:
    """Read the resolved config of a run of unknown origin, and load its imports.

    Only ``trust`` allows the code that it executes, and the addresses and files that it names.
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
    """Folder of a checkpoint: an iteration by number, the latest valid one (``"last"``), or the ``"best"``."""
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


def checkpoint_between(run: Path, first: int, last: int) -> Path | None:
    """A checkpoint of an iteration from ``first`` to ``last``, between which the mask policy does not change."""
    for folder in sorted((run / CHECKPOINTS_FOLDER).glob("iteration_*"), reverse=True):
        number = re.fullmatch(r"iteration_(\d+)", folder.name)
        if number and first <= int(number[1]) <= last and (folder / MASK_FILE).is_file():
            return folder
    return None


def first_model(config: TextConfig, run: Path) -> PreTrainedModel | None:
    """The initial language model of a run; ``None`` if it is no longer available."""
    try:
        model = Assembly(config).initial_model
    except RL4DialogError as error:
        _logger.warning("the initial model of the run is not available: %s", error)
        return None
    recorded = read_provenance(run).get("model_hash")
    return model if recorded in (None, weights_hash(model)) else None


def check_without_values(config: TextConfig, run: Path, prior_only: bool, why_lost: str, verb: str) -> None:
    """Check that a run's policy stays the same without values, or that its language model alone is wanted."""
    try:
        guided = is_guided(config)
    except ConfigError as error:
        if not config.imports:
            raise
        raise ConfigError(
            f"the policy {config.policy_id!r} of {run}, or its algorithm, is custom code (imports: "
            f"{', '.join(config.imports)}). Review it, and pass --trust (trust=True in Python) if you trust it"
        ) from error
    if guided and not prior_only:
        raise ConfigError(
            f"the policy of {run} is guided by values, {why_lost}, so without them it would be another policy; pass "
            f"--prior_only to {verb} its language model alone"
        )
    if prior_only and not guided:
        raise ConfigError(f"--prior_only has no meaning for {run}, whose policy is its language model; remove it")


def check_learns_v(config: TextConfig, what: str) -> None:
    """Check that V(s) is among the values of a policy with values of tokens."""
    if not OfflineAlgorithmRegistry.resolve(config.alg.id).has_values:
        raise ModelError(f"alg.id: {config.alg.id} learns no V, so there are no {what}")
