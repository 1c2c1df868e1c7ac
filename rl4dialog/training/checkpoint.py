"""Checkpoints, the complete state of a run written atomically, and resuming from them.

``checkpoints/iteration_000020/`` holds the trainee's tensors, ``state.json`` (all small values) and ``manifest.json``
with sizes and hashes to detect damaged checkpoints. ``checkpoints/unfinished_iteration/`` is a checkpoint from within
an iteration, kept until the next iteration is saved. Checkpoints contain no pickles.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.config import RunConfig, parse_config
from rl4dialog.core.config_blocks import generation_backends
from rl4dialog.core.errors import CheckpointError, ConfigError, RunFolderError, shown
from rl4dialog.core.files import json_object, read_manifest, read_or_nothing, write_manifest
from rl4dialog.core.run_format import current_config, current_state, naming_writer, numbered, why_removed
from rl4dialog.core.types import is_whole_number
from rl4dialog.core.yaml_loader import differing
from rl4dialog.functional.distributed import all_gather_object, n_processes, process_index
from rl4dialog.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    TRAINING_INFO_FILE,
    RunFolder,
    is_complete,
    predictions_since,
)

_logger = logging.getLogger(__name__)
_STATE_FILE = "state.json"
_FOLDER_NAME = re.compile(r"iteration_([0-9]+)")
_UNFINISHED = f"{CHECKPOINTS_FOLDER}/unfinished_iteration"
_BEST_FILE = "best.json"


@dataclass
class Checkpoint:
    """A valid checkpoint on disk."""

    path: Path
    state: dict[str, Any]

    @property
    def iteration(self) -> int:
        """Number of finished iterations when it was written."""
        return int(self.state["iteration"])

    @property
    def is_unfinished(self) -> bool:
        """Whether it was written within the iteration after these."""
        return bool(self.state.get("is_unfinished"))

    def of_process(self, key: str) -> Any:
        """What this process saved under a key of the state, which has a list with a value of each process."""
        found = self.state[key]
        if len(found) != n_processes():
            now = f"but this run has {n_processes()}; start the run with {len(found)}"
            raise CheckpointError(f"{self.path} was written by {len(found)} processes, {now}")
        return found[process_index()]


class CheckpointStore:
    """The checkpoints of a run."""

    def __init__(self, run_folder: RunFolder | None, keep_last: int = 2) -> None:
        self._run_folder, self._keep_last = run_folder, keep_last

    def has(self, iteration: int) -> bool:
        """Whether there is a checkpoint of that iteration. All processes must call this."""
        is_here = self._run_folder is not None and self._run_folder.path(_name(iteration)).is_dir()
        return bool(all_gather_object(is_here)[0])

    def save(self, state: Mapping[str, Any], save_tensors: Callable[[Path | None], None]) -> None:
        """Write a checkpoint, then remove outdated ones. All processes must call this.

        The state has ``iteration`` and, within the next one, a true ``is_unfinished``. ``save_tensors`` is called with
        the folder, or with ``None`` in a process that does not write. If it cannot be written, earlier checkpoints stay
        unchanged.
        """
        if self._run_folder is None:
            save_tensors(None)
            return
        is_unfinished = state.get("is_unfinished", False)
        with self._run_folder.replacing_folder(_UNFINISHED if is_unfinished else _name(state["iteration"])) as folder:
            save_tensors(folder)
            (folder / _STATE_FILE).write_text(json.dumps(numbered(state)), encoding="utf-8")
            write_manifest(folder)
        if not is_unfinished:
            shutil.rmtree(self._run_folder.path(_UNFINISHED), ignore_errors=True)
        self._remove_old()

    def mark_best(self, iteration: int, metric: str, value: float) -> None:
        """Protect a checkpoint from removal, instead of the one marked before."""
        assert self._run_folder is not None
        record = {"iteration": iteration, "metric": metric, "value": value}
        self._run_folder.write_json(f"{CHECKPOINTS_FOLDER}/{_BEST_FILE}", record)
        self._remove_old()

    def best(self) -> Checkpoint | None:
        """The checkpoint that is marked as the best; ``None`` without one. All processes must call this.

        Raises:
            CheckpointError: If it is damaged.
        """
        found = best_checkpoint(self._run_folder.root) if self._run_folder is not None else None
        path = all_gather_object(found and self._run_folder and self._run_folder.path(_name(found["iteration"])))[0]
        return read_checkpoint(path) if path else None

    def _remove_old(self) -> None:
        assert self._run_folder is not None
        found, best = checkpoint_folders(self._run_folder.root), best_checkpoint(self._run_folder.root)
        for iteration in list(found)[: -self._keep_last]:
            if best is None or iteration != best["iteration"]:
                shutil.rmtree(found[iteration], ignore_errors=True)


def describe(state: Mapping[str, Any]) -> str:
    """When a state was captured: ``after iteration 2``, or ``within iteration 3``."""
    iteration = int(state["iteration"])
    return f"within iteration {iteration + 1}" if state.get("is_unfinished") else f"after iteration {iteration}"


def checkpoint_folders(root: Path) -> dict[int, Path]:
    """Folders of a run's checkpoints by iteration, oldest first. Damaged ones are included."""
    named = ((_FOLDER_NAME.fullmatch(path.name), path) for path in (root / CHECKPOINTS_FOLDER).glob("iteration_*"))
    return dict(sorted((int(name[1]), path) for name, path in named if name and path.is_dir()))


def newest_folders(root: Path) -> list[Path]:
    """Folders of a run's checkpoints, latest first. Damaged ones are included."""
    unfinished = [path for path in (root / _UNFINISHED,) if path.is_dir()]  # removed when a later one is saved
    return [*unfinished, *reversed(checkpoint_folders(root).values())]


def newest_checkpoint(root: Path) -> Checkpoint | None:
    """Return the latest valid checkpoint of a run. Damaged ones are skipped with a warning."""
    for path in newest_folders(root):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            _logger.warning("%s; it is skipped", error)
    return None


def best_checkpoint(root: Path) -> dict[str, Any] | None:
    """Return ``iteration``, ``metric`` and ``value`` of the best checkpoint, if one is marked and exists."""
    best: dict[str, Any] = read_or_nothing(root / CHECKPOINTS_FOLDER / _BEST_FILE)
    with suppress(KeyError, TypeError, ValueError):
        return best if (root / _name(best["iteration"])).is_dir() else None
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    try:
        read_manifest(path)
        state = json_object((path / _STATE_FILE).read_text(encoding="utf-8"))
        if not is_whole_number(number := state.get("iteration"), at_least=0):
            raise ValueError(f"the iteration in its {_STATE_FILE} is {shown(number)}")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from error
    return Checkpoint(path, current_state(state, path.parents[1]))


def _name(iteration: int) -> str:
    return f"{CHECKPOINTS_FOLDER}/iteration_{iteration:06d}"


_MAX_SHOWN = 8  # changed keys in a message
# Keys that may change on resume: they affect evaluation and saving, but not training.
_FREE = (
    *("train_evaluation", "logging", "callbacks", "reward_fn.timeout_s", "env.vec_env", "env.n_workers"),
    *(f"generation.{key}" for backend in generation_backends().values() for key in backend.free),
)


def is_done(root: Path, config: RunConfig) -> bool:
    """Whether a run has finished, and the config does not extend it; warns of changes that come too late."""
    if not is_complete(root):
        return False
    stored = _check_same(root, config)
    if config.n_iters > stored.n_iters:
        return False
    found = changes(stored.model_dump(mode="json"), config.model_dump(mode="json"))
    if late := [change for key, change in found if key.startswith("train_evaluation.")]:
        _logger.warning("the run in %s is complete, so this has no effect: %s", root, "; ".join(late))
    return True


def _has_trained(root: Path) -> bool:
    """Whether the run in a folder has finished an iteration or saved a model."""
    later = any(folder.name != "iteration_000000" for folder in newest_folders(root)) or predictions_since(root, 1)
    return bool(later) or any((root / name).exists() for name in (RESULT_FILE, MODEL_FOLDER, TRAINING_INFO_FILE))


def find_run(root: Path, config: RunConfig, mode: str | None) -> Checkpoint | None:
    """Checkpoint to resume a run from; ``None`` to start a new one.

    With the mode ``always``, there must be one. With ``auto``, the remains of a run that did not finish and has no
    valid checkpoint are replaced; with ``None``, only if it has not trained, then whatever its config.
    """
    if not (root / CONFIG_FILE).is_file():
        if mode != "always":
            return None
        raise RunFolderError(f"no run to resume in {root}; leave out --resume, or use --resume auto, to start one")
    may_replace = mode != "always" and not _has_trained(root)
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
        advice = "restart it with --overwrite instead of --resume, or start another --experiment_name"
        raise CheckpointError(f"the run in {root} has no valid checkpoint to resume from; {advice}")
    if (n := checkpoint.iteration) > config.n_iters:
        limit = f"train_evaluation.n_iters is {config.n_iters}; set it to at least {n}"
        raise CheckpointError(f"{checkpoint.path} is a checkpoint of iteration {n}, but {limit}")
    return checkpoint


def go_back_to(checkpoint: Checkpoint, run_folder: RunFolder) -> None:
    """Undo everything that the run wrote after a checkpoint, damaged checkpoints included."""
    # Within an iteration, the evaluation after the previous one is already done.
    run_folder.cut_back(checkpoint.state["log_sizes"], checkpoint.iteration + checkpoint.is_unfinished)
    later = [path for found, path in checkpoint_folders(run_folder.root).items() if found > checkpoint.iteration]
    if not checkpoint.is_unfinished:
        later.append(run_folder.path(_UNFINISHED))
    for path in (*later, *run_folder.path(CHECKPOINTS_FOLDER).glob(".*.tmp")):
        shutil.rmtree(path, ignore_errors=True)


def changes(stored: Mapping[str, Any], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of two configs that differ, each with a description."""
    found = sorted(differing(stored, config), key=lambda each: each[0])
    return [(key, f"{key} was {before!r} and is now {now!r}") for key, before, now in found]


def _stored_config(root: Path) -> RunConfig:
    path = root / CONFIG_FILE
    try:
        config = current_config(json_object(path.read_text(encoding="utf-8")), root)
        with naming_writer(root):
            return parse_config(config, str(path))
    except (OSError, ValueError, ConfigError) as error:
        advice = "replace the run with --overwrite, or remove its folder"
        raise RunFolderError(f"{path} cannot be read, which --resume needs: {error}; {advice}") from error


def _check_same(root: Path, config: RunConfig) -> RunConfig:
    """Check that a config and the stored one define the same training; return the latter."""
    stored = _stored_config(root)
    free, (before, now) = tuple(f"{key}." for key in _FREE), (c.model_dump(mode="json") for c in (stored, config))
    if {each.get("generation", {}).get("backend") for each in (before, now)} == {"auto", "transformers"}:
        free += ("generation.backend.",)  # auto was transformers once, and continues such a run
    for key, was, becomes in differing(before, now):
        if becomes is None and (why := why_removed(stored.alg.id, key, was)):
            raise ConfigError(f"the run in {root} cannot be resumed: {why}")
    if changed := [text for key, text in changes(before, now) if not f"{key}.".startswith(free)]:
        more = [f"and {n} more"] if (n := len(changed) - _MAX_SHOWN) > 0 else []
        advice = "Use its own config (--resume), replace it with --overwrite, or name another --experiment_name"
        shown = "; ".join([*changed[:_MAX_SHOWN], *more])
        raise ConfigError(f"the run in {root} was started with a different config: {shown}. {advice}")
    return stored
