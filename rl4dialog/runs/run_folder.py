"""The folder of one run, ``<base>/<project>/<experiment>/``: its files, atomic writing, its lock, and its result.

All JSON is strictly valid: NaN and infinities are written as ``null``. File names are those of RL4LMs.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from rl4dialog.core.arguments import parsed
from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.core.files import (
    CONFIG_FILE,
    append_whole,
    check_contained,
    json_line,
    json_object,
    naming_errors,
    read_or_nothing,
    sync_folder,
    sync_names,
    to_plain,
    try_lock,
    write_json,
)
from rl4dialog.core.pretrained import PRIOR_ONLY
from rl4dialog.core.run_format import PROVENANCE_FILE
from rl4dialog.runs.trust import arguments_of

_logger = logging.getLogger(__name__)
LOG_FILE = "log.txt"
ROLLOUT_INFO_FILE = "rollout_info.jsonl"
TRAINING_INFO_FILE = "training_info.jsonl"
WARNINGS_FILE = "warnings.jsonl"
CONVERSATIONS_FILE = "conversations.jsonl.gz"
CHECKPOINTS_FOLDER = "checkpoints"
BEST_MODEL_FOLDER = "best_model"
CSV_FILE = "progress.csv"
JSON_FILE = "progress.json"
TENSORBOARD_FOLDER = "tensorboard"
DIFF_FILE = "uncommitted.diff"
RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
PLAYERS_FILE = "test_split_players.json"
REFERENCES_FILE = "test_split_references.json"
CRITIC_MEASURE_FILE = "critic.json"
LOGGED_CRITIC_FILE = "critic_logged.json"
MODEL_FOLDER = "model"
EVALUATIONS_FOLDER = "evaluations"
LOCK_FILE = ".lock"
_POLL_S = 0.2
_ADVICE = "; free up space or fix the permissions, or choose another --base_path_to_store_results"

Metrics = Mapping[str, float]

# Files that a run appends to while it trains, as patterns; other jsonl files in the folder are left alone.
_RECORDS = (ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, WARNINGS_FILE, CONVERSATIONS_FILE, "*_split_metrics.jsonl")
_PREDICTIONS = "epoch_*_split_predictions.json"

# The replaced run's files, from the start of the new run until it trains. Only the second name is complete.
_MOVING = ".replaced_partly"
_REPLACED = ".replaced"

# Files and folders that a run creates, as patterns: overwriting removes these and nothing else.
_KNOWN_FILES = (
    *(CONFIG_FILE, LOG_FILE, *_RECORDS, CSV_FILE, JSON_FILE, PROVENANCE_FILE, DIFF_FILE, RESULT_FILE, PLAYERS_FILE),
    *(REFERENCES_FILE, _PREDICTIONS, REPORT_FILE, CRITIC_MEASURE_FILE, "critic.png", "reward_curve.png", ".*.tmp"),
    *(LOGGED_CRITIC_FILE, "critic_logged.png"),
)
_KNOWN_FOLDERS = (
    *(MODEL_FOLDER, BEST_MODEL_FOLDER, CHECKPOINTS_FOLDER, EVALUATIONS_FOLDER, TENSORBOARD_FOLDER),
    *("supervised", "wandb", ".*.tmp"),
)


class RunFolder:
    """Creates and writes the folder of a run, which exists and is writable then.

    The files of an earlier run of the same name are set aside, until :meth:`discard_replaced` removes them; other files
    are kept. ``resume`` keeps the folder as it is. ``root`` is its absolute path.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str],
        project_name: str,
        experiment_name: str,
        resume: bool = False,
    ) -> None:
        self.root = run_path(base_path, project_name, experiment_name)
        with naming_errors(self.root, _ADVICE):
            self.root.mkdir(parents=True, exist_ok=True)
            check_contained(self.root)
            # Detects a full disk now instead of after hours of training.
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
                os.fsync(probe.fileno())
            if not resume and not is_unused(self.root):
                self._set_aside()

    @contextmanager
    def keeping_replaced(self) -> Iterator[None]:
        """Put the files of the replaced run back if the block fails before :meth:`discard_replaced`."""
        try:
            yield
        except BaseException:
            put_back_replaced(self.root)
            raise

    def discard_replaced(self) -> None:
        """Remove the files of the replaced run, if any, once the new one has started."""
        with naming_errors(self.path(_REPLACED), _ADVICE):
            if self.path(_REPLACED).is_dir():
                # Renamed first, because a part of them must never be put back.
                shutil.rmtree(self.path(_REPLACED).rename(self.path(f"{_REPLACED}.tmp")))

    def path(self, name: str) -> Path:
        """Absolute path of a file of this run, which need not exist."""
        return self.root / name

    def write_json(self, name: str, obj: Any) -> Path:
        """Write an object as indented JSON, atomically."""
        write_json(self.path(name), obj, _ADVICE)
        return self.path(name)

    def append_jsonl(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a record as one line, in a single write, so that readers never see a partial line."""
        _append(self.path(name), json_line(to_plain(record)))

    def append_compressed(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records to a ``.jsonl.gz`` file as a gzip member of its own, so that it can be cut between appends."""
        # Without the time, so that the same records give the same file.
        _append(self.path(name), gzip.compress(b"".join(map(json_line, map(to_plain, records))), mtime=0))

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """Read the records written by :meth:`append_jsonl`; none if the file does not exist."""
        path = self.path(name)
        try:
            return [json_object(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def log_sizes(self) -> dict[str, int]:
        """Sync the records of the run to disk and return their sizes in bytes."""
        sizes = {}
        for path in self._records():
            with naming_errors(path, _ADVICE), open(path, "rb") as file:
                os.fsync(file.fileno())
                sizes[path.name] = os.fstat(file.fileno()).st_size
        sync_names(self.root)
        return sizes

    def cut_back(self, log_sizes: Mapping[str, int], iteration: int) -> None:
        """Remove what was logged after these :meth:`log_sizes`, and predictions from this iteration on."""
        for name, size in log_sizes.items():
            path = self.path(name)
            if _is_record(name) and (not path.is_file() or path.stat().st_size < size):
                cure = "replace the run with --overwrite, or remove its folder"
                raise RunFolderError(f"{path} has lost lines that it contained when the checkpoint was written; {cure}")
        # The result first, because it marks the run as complete. The evaluation after an iteration runs after its
        # checkpoint; the initial one runs before all checkpoints.
        later = predictions_since(self.root, max(iteration, 1))
        for path in (self.path(RESULT_FILE), *self._records(), *later):
            with naming_errors(path, _ADVICE):
                if path.name in log_sizes:
                    os.truncate(path, log_sizes[path.name])
                else:
                    path.unlink(missing_ok=True)

    @contextmanager
    def replacing_folder(self, name: str) -> Iterator[Path]:
        """Replace a sub-folder atomically: yields a temporary folder that gets the name if the block succeeds."""
        final = self.path(name)
        temporary, old = final.with_name(f".{final.name}.tmp"), final.with_name(f".{final.name}.old.tmp")
        with naming_errors(final, _ADVICE):
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir(parents=True)
                yield temporary
                sync_folder(temporary)
                shutil.rmtree(old, ignore_errors=True)
                if final.exists():
                    final.rename(old)
                temporary.rename(final)
                for folder in {final.parent, self.root}:  # the first checkpoint creates the parent too
                    sync_names(folder)
            except BaseException as error:
                if old.exists() and not final.exists():
                    old.rename(final)
                shutil.rmtree(temporary, ignore_errors=True)
                # safetensors raises its own exception for a full disk, with the error number only in its text.
                if isinstance(error, Exception) and (number := re.search(r"\(os error (\d+)\)", str(error))):
                    raise OSError(int(number.group(1)), os.strerror(int(number.group(1)))) from error
                raise
            shutil.rmtree(old, ignore_errors=True)

    def _records(self) -> list[Path]:
        return sorted(path for path in self.root.glob("*.jsonl*") if _is_record(path.name))

    def _set_aside(self) -> None:
        if not (self.root / CONFIG_FILE).is_file():
            why = f"is not empty and contains no {CONFIG_FILE}, so --overwrite does not touch it"
            raise RunFolderError(f"{self.root} {why}; choose another --experiment_name")
        self.path(_MOVING).mkdir()
        for path in _run_files(self.root):
            path.rename(self.path(_MOVING) / path.name)
        self.path(_MOVING).rename(self.path(_REPLACED))


def predictions_since(root: Path, iteration: int) -> list[Path]:
    """Files with the replies of evaluations after an iteration or later ones."""
    found = ((path, path.name.split("_")[1]) for path in root.glob(_PREDICTIONS))
    return [path for path, epoch in found if epoch.isdigit() and int(epoch) >= iteration]


def put_back_replaced(root: Path) -> None:
    """Undo a start that was to replace a run: remove what it wrote, and put the files of the replaced run back."""
    with naming_errors(root, _ADVICE):
        if (root / _REPLACED).is_dir():
            for path in _run_files(root):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            (root / _REPLACED).rename(root / _MOVING)
        if (root / _MOVING).is_dir():
            for path in (root / _MOVING).iterdir():
                path.rename(root / path.name)
            (root / _MOVING).rmdir()
            _logger.warning("the new run did not start, so the earlier one in %s is kept", root)


def check_not_replaced(root: Path, config: Mapping[str, Any]) -> None:
    """Check that a resolved config does not read files of the run that it is to replace."""
    real_root = Path(os.path.realpath(root))
    own = {path.name for path in _run_files(root)}
    for key, text in ((key, value) for key, *_, value in arguments_of(config) if value and isinstance(value, str)):
        path = Path(os.path.realpath(text.removesuffix(PRIOR_ONLY)))
        if own and (path == real_root or (real_root in path.parents and path.relative_to(real_root).parts[0] in own)):
            cure = "choose another --experiment_name, or copy what it reads out of that folder"
            raise RunFolderError(f"{key}: {text} is in the run folder {root}, which the new run would replace; {cure}")


def _run_files(root: Path) -> list[Path]:
    """Files and folders that a run created in its folder."""
    folders = [path for pattern in _KNOWN_FOLDERS for path in root.glob(pattern) if path.is_dir()]
    files = [path for pattern in _KNOWN_FILES for path in root.glob(pattern) if path.is_file() or path.is_symlink()]
    return list(dict.fromkeys([*folders, *files]))


def is_unused(folder: Path) -> bool:
    """Whether a folder does not exist, or has only what a process leaves that is killed at its start."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name] * folder.exists()
    return all(name == LOCK_FILE or fnmatch(name, ".*.tmp") for name in names)


def run_path(base_path: str | os.PathLike[str], project_name: str, experiment_name: str) -> Path:
    """Return the absolute path of a run folder, which need not exist."""
    base = Path(base_path).expanduser().absolute()
    for flag, name in (("--project_name", project_name), ("--experiment_name", experiment_name)):
        unusable = not name.isprintable() or any(len(os.fsencode(part)) > 255 for part in Path(name).parts)
        if not name or unusable or ".." in Path(name).parts or Path(name).is_absolute():
            raise RunFolderError(f"{flag} {name!r} is not a valid folder name inside {base}")
    return base / project_name / experiment_name


@contextmanager
def only_writer(root: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Lock a run folder, which is created if necessary, against other training processes while the block runs.

    A process that has locked it is waited for as long as the patience lasts.
    """
    path = root / LOCK_FILE
    with naming_errors(path, _ADVICE):
        root.mkdir(parents=True, exist_ok=True)
        check_contained(root)
        handle = _locked(path, time.monotonic() + patience_s)
    try:
        put_back_replaced(root)  # if a process was killed at its start
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            root.rmdir()  # only succeeds if it is empty
        os.close(handle)


def _locked(path: Path, until: float) -> int:
    """Lock a file and return its descriptor."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # the writer that was waited for may have removed it
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = try_lock(handle)
        except OSError as error:
            _logger.warning("%s cannot be locked (%s): do not train into it twice at the same time", path, error)
            return handle
        if not is_locked:
            os.close(handle)
            if time.monotonic() < until:
                time.sleep(_POLL_S)
                continue
            cure = "wait until it ends, or choose another folder"
            raise RunFolderError(f"another process is writing to the run in {path.parent}; {cure}")
        # Another process may have ended and removed the file after it was opened here.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def is_being_written(root: Path) -> bool:
    """Whether a process has locked a run folder."""
    with suppress(OSError), open(root / LOCK_FILE, "r+b") as file:
        return not try_lock(file.fileno())
    return False


def write_result(
    run_folder: RunFolder, iterations: int, before: Mapping[str, Metrics], after: Mapping[str, Metrics]
) -> None:
    """Write the result, which marks a run as complete: the number of iterations or epochs, and metrics by split."""
    splits = {split: {"before": dict(before[split]), "after": dict(after[split])} for split in before}
    run_folder.write_json(RESULT_FILE, {"iterations": iterations, **splits})


def is_complete(run: str | Path) -> bool:
    return bool(result_or_nothing(Path(run)))


def run_state(run: str | Path) -> str:
    """Return ``running`` if a process writes to the folder of a run, otherwise ``complete`` or ``stopped``."""
    folder = Path(run)
    return "running" if is_being_written(folder) else "complete" if is_complete(folder) else "stopped"


def read_result(run: str | Path) -> dict[str, Any]:
    """Read the result written by :func:`write_result`."""
    folder = Path(run)
    check_is_run(folder)
    if not (result := result_or_nothing(folder)):
        what = "is damaged" if (folder / RESULT_FILE).exists() else "is missing"
        raise RunFolderError(f"the run {folder} is not complete: its {RESULT_FILE}, which is written last, {what}")
    return result


class _SplitResult(TypedDict):
    before: dict[str, float | None]
    after: dict[str, float | None]


def result_or_nothing(folder: Path) -> dict[str, Any]:
    """The contents of ``result.json``; empty if it is missing or damaged."""
    with suppress(DataError):
        found = dict(parsed(dict[str, int | _SplitResult], read_or_nothing(folder / RESULT_FILE), RESULT_FILE))
        return found if isinstance(found.get("iterations"), int) else {}
    return {}


def read_players(run: str | Path) -> dict[str, dict[str, float]]:
    """Read the test metrics of the datapool's scripted players; empty if there are none, or the file is damaged."""
    with suppress(ValueError, AttributeError, TypeError):
        return {name: _numbers(metrics) for name, metrics in read_or_nothing(Path(run) / PLAYERS_FILE).items()}
    return {}


def read_references(run: str | Path) -> dict[str, float]:
    """Read the test metrics of the reference replies; empty if there are none, or the file is damaged."""
    with suppress(ValueError, AttributeError, TypeError):
        return _numbers(read_or_nothing(Path(run) / REFERENCES_FILE))
    return {}


class _CriticRecord(TypedDict):
    """The part of `CRITIC_MEASURE_FILE` that is read."""

    checkpoint: str
    split: str
    n_states: int
    n_continuations: int
    metrics: dict[str, float | None]
    bins: list[dict[Literal["value", "mean_return", "n"], float]]
    notes: list[str]


def read_critic(run: str | Path) -> dict[str, Any]:
    """Read what ``rl4dialog critic`` measured; empty if it did not, or the file is damaged."""
    found = read_or_nothing(path := Path(run) / CRITIC_MEASURE_FILE)
    try:
        return dict(parsed(_CriticRecord, found, str(path))) if path.exists() else {}
    except DataError as error:
        _logger.warning("%s; the report leaves it out", error)
        return {}


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {key: math.nan if value is None else float(value) for key, value in metrics.items()}


def check_is_run(folder: Path) -> None:
    check_contained(folder)
    if not (folder / CONFIG_FILE).is_file():
        what = f"contains no {CONFIG_FILE}" if folder.is_dir() else "does not exist"
        raise RunFolderError(f"{folder} {what}; pass a run folder: <base path>/<project>/<experiment>")


def _append(path: Path, data: bytes) -> None:
    with naming_errors(path, _ADVICE), open(path, "ab", buffering=0) as file:
        append_whole(file, data)


def _is_record(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _RECORDS)
