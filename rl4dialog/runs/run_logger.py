"""The outputs of ``logging: {outputs: [...]}``: one row per iteration, through stable-baselines3's logger.

The jsonl files of the run folder are authoritative; these outputs are copies in other formats. A resumed run rebuilds
them from the jsonl files, so no row is lost or duplicated. If an output fails, it is disabled with a warning.
Experiment trackers are handled in `experiment_trackers`.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stable_baselines3.common import logger as sb3_logger

from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.runs.experiment_trackers.copies import check_trackers
from rl4dialog.runs.run_folder import (
    CSV_FILE,
    JSON_FILE,
    ROLLOUT_INFO_FILE,
    TENSORBOARD_FOLDER,
    TRAINING_INFO_FILE,
    RunFolder,
    to_plain,
)

_log = logging.getLogger(__name__)
_METRICS_SUFFIX = "_split_metrics.jsonl"
# stable-baselines3's table truncates longer keys, and raises an error if two become equal.
_MAX_KEY_LENGTH = 200


def check_outputs(outputs: Collection[str]) -> None:
    """Check that the packages of the outputs are installed."""
    check_trackers(outputs)
    if "tensorboard" in outputs and sb3_logger.SummaryWriter is None:
        raise ConfigError(
            "the log output tensorboard needs the package tensorboard: pip install 'rl4dialog[tensorboard]'"
        )


class RunLogger:
    """Collects the values of an iteration in one row, and writes it when the next iteration starts.

    A row contains ``time/iterations``, ``time/total_timesteps`` (agent tokens or environment steps so far, also used as
    the step), the values of ``rollout_info.jsonl`` and ``training_info.jsonl``, and evaluations as
    ``eval/<split>/<metric>``. Row 0 is the evaluation before training. Without rollouts, the step is the iteration.

    Args:
        run_folder: Folder for the files, and source of earlier records.
        outputs: Any of ``csv``, ``json``, ``tensorboard``, ``stdout``; others are ignored.
    """

    def __init__(self, run_folder: RunFolder, outputs: Collection[str]) -> None:
        self._folder = run_folder
        # One logger per output, so that a failing output is disabled alone.
        self._console = {"stdout": _console()} if "stdout" in outputs else {}
        self._file_outputs = [name for name in ("csv", "json", "tensorboard") if name in outputs]
        self._files: dict[str, sb3_logger.Logger] = {}
        self._iteration, self._n_timesteps = 0, 0
        self._row: dict[str, Any] = {}
        self._unshown: dict[str, Any] = {}  # values of the row not yet shown on the console
        self.replay()

    def rollout(self, info: Mapping[str, Any]) -> None:
        """Add a record of ``rollout_info.jsonl``."""
        self._begin(int(info["iteration"]))
        self._n_timesteps += int(info.get("rollout/tokens", info.get("rollout/timesteps", 0)))
        self._add({key: value for key, value in info.items() if key != "iteration"})

    def training(self, info: Mapping[str, Any]) -> None:
        """Add a record of ``training_info.jsonl``; those of earlier supervised runs have no iteration, and are of 1."""
        self._begin(int(info.get("iteration", 1)))
        values = {key: value for key, value in info.items() if key != "iteration"}
        self._add({key if "/" in key else f"train/{key}": value for key, value in values.items()})

    def evaluation(self, iteration: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Add a split's metrics."""
        self._begin(iteration)
        self._add({f"eval/{split}/{key}": value for key, value in metrics.items()})

    def replay(self) -> None:
        """Delete the files and rebuild them from the jsonl files of the run folder."""
        self._close_files()
        self._iteration, self._n_timesteps, self._row = 0, 0, {}
        try:
            for name in (CSV_FILE, JSON_FILE):
                self._folder.path(name).unlink(missing_ok=True)
            shutil.rmtree(self._folder.path(TENSORBOARD_FOLDER), ignore_errors=True)
            self._files = {name: _logger(self._open(name)) for name in self._file_outputs}
        except OSError as error:
            raise RunFolderError(
                f"cannot write the outputs of logging.outputs in {self._folder.root}: {error.strerror or error}"
            ) from error
        for iteration, kind, record in sorted(self._records(), key=lambda found: found[:2]):
            if kind == 0:
                self.rollout(record)
            elif kind == 1:
                self.training(record)
            else:
                self.evaluation(iteration, record["split"], record["metrics"])
            self._unshown = {}  # old values are not printed again

    def show(self) -> None:
        """Print values that are new since the last table, if ``stdout`` is one of the outputs."""
        self._write(self._console, self._unshown)
        self._unshown = {}

    def close(self) -> None:
        """Write the last row and close the files."""
        self._end()
        self._close_files()

    def _begin(self, iteration: int) -> None:
        if iteration != self._iteration:
            self._end()
            self._iteration = iteration

    def _end(self) -> None:
        self.show()
        self._write(self._files, self._row)
        self._row = {}

    def _add(self, values: Mapping[str, Any]) -> None:
        # Converted as in the jsonl files, so that a replay gives identical rows.
        new = {key: value for key, value in to_plain(values).items() if isinstance(value, (int, float, str))}
        self._row.update(new)
        self._unshown.update(new)

    def _write(self, loggers: dict[str, sb3_logger.Logger], values: Mapping[str, Any]) -> None:
        if not values:
            return
        counts = {"time/iterations": self._iteration, "time/total_timesteps": self._n_timesteps}
        for name, logger in list(loggers.items()):
            for key, value in {**values, **counts}.items():
                logger.record(key, value)
            try:
                logger.dump(self._n_timesteps or self._iteration)
            except Exception as error:  # never fatal, because the jsonl files are authoritative
                del loggers[name]
                _log.warning("the output %s failed and is disabled (%s); the jsonl files are complete", name, error)

    def _close_files(self) -> None:
        for logger in self._files.values():
            with contextlib.suppress(Exception):  # a full disk may fail on the final flush
                logger.close()

    def _records(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Iteration, kind and content of all records in the jsonl files."""
        for kind, name in enumerate((ROLLOUT_INFO_FILE, TRAINING_INFO_FILE)):
            for record in self._folder.read_jsonl(name):
                yield int(record.get("iteration", 1)), kind, record
        for split in ("val", "test", "train"):
            for record in self._folder.read_jsonl(f"{split}{_METRICS_SUFFIX}"):
                yield record["epoch"], 2, {"split": split, "metrics": record["metrics"]}

    def _open(self, output: str) -> sb3_logger.KVWriter:
        if output == "csv":
            return _CSVOutput(str(self._folder.path(CSV_FILE)))
        root = self._folder.path(TENSORBOARD_FOLDER) if output == "tensorboard" else self._folder.root
        return sb3_logger.make_output_format(output, str(root))


class _CSVOutput(sb3_logger.CSVOutputFormat):
    """CSV output with new columns in alphabetical order; stable-baselines3 uses the order of a set."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        new = sorted(set(key_values) - set(self.keys))
        if new:
            self.keys.extend(new)
            self.file.seek(0)
            rows = self.file.read().splitlines()[1:]
            self.file.seek(0)
            self.file.writelines(f"{line}\n" for line in [",".join(self.keys), *(row + "," * len(new) for row in rows)])
        super().write(key_values, key_excluded, step)


def _logger(output: sb3_logger.KVWriter) -> sb3_logger.Logger:
    return sb3_logger.Logger(folder=None, output_formats=[output])


def _console() -> sb3_logger.Logger:
    table = sb3_logger.make_output_format("stdout", ".")
    assert isinstance(table, sb3_logger.HumanOutputFormat)
    table.max_length = _MAX_KEY_LENGTH
    return _logger(table)
