"""The outputs of ``logging: {outputs: [...]}``: a row per iteration, through stable-baselines3's own logger.

The jsonl files of the run folder are the record, and these are copies in other forms. So a run that goes on in an
existing folder writes them anew from the jsonl files first, and nothing is lost or doubled in them. A failure of theirs
is a warning that ends only them. Weights & Biases is not here (see `tracking`).
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stable_baselines3.common import logger as sb3_logger

from rl4dialog.core.errors import ConfigError, RunFolderError
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
# Longer keys would be cut by stable-baselines3's table, and two that become equal are an error there.
_MAX_KEY_LENGTH = 200


def check_outputs(outputs: Collection[str]) -> None:
    """Check that what the outputs need is installed.

    Raises:
        ConfigError: If TensorBoard is wanted and missing.
    """
    if "tensorboard" in outputs and sb3_logger.SummaryWriter is None:
        raise ConfigError(
            "logging.outputs names tensorboard, which is not installed: pip install rl4dialog[tensorboard]"
        )


class RunLogger:
    """Gathers what is known of an iteration into one row, and writes it when the next begins.

    A row has ``time/iterations``, ``time/total_timesteps`` (agent tokens so far, which is the row's step too), the
    values of ``rollout_info.jsonl`` and ``training_info.jsonl``, and of evaluations ``eval/<split>/<metric>``. Row 0
    is the evaluation before training. Where nothing is rolled out, the step is the iteration.

    Args:
        run_folder: Where the files go, and where the records are that stand there already.
        outputs: Any of ``csv``, ``json``, ``tensorboard``, ``stdout``; others are ignored.

    Raises:
        RunFolderError: If a file cannot be opened.
    """

    def __init__(self, run_folder: RunFolder, outputs: Collection[str]) -> None:
        self._folder = run_folder
        # A logger for each, so that one that fails ends alone.
        self._console = {"stdout": _console()} if "stdout" in outputs else {}
        self._file_outputs = [name for name in ("csv", "json", "tensorboard") if name in outputs]
        self._files: dict[str, sb3_logger.Logger] = {}
        self._iteration, self._n_tokens = 0, 0
        self._row: dict[str, Any] = {}
        self._unshown: dict[str, Any] = {}  # of the row, what the console has not seen
        self.replay()

    def rollout(self, info: Mapping[str, Any]) -> None:
        """Add a record of ``rollout_info.jsonl``."""
        self._begin(int(info["iteration"]))
        self._n_tokens += int(info.get("rollout/tokens", 0))
        self._add({key: value for key, value in info.items() if key != "iteration"})

    def training(self, info: Mapping[str, Any]) -> None:
        """Add a record of ``training_info.jsonl``; that of a supervised run is of the one iteration that it has."""
        self._begin(int(info.get("iteration", 1)))
        values = {key: value for key, value in info.items() if key != "iteration"}
        self._add({key if "/" in key else f"train/{key}": value for key, value in values.items()})

    def evaluation(self, iteration: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Add a record of a split's metrics."""
        self._begin(iteration)
        self._add({f"eval/{split}/{key}": value for key, value in metrics.items()})

    def replay(self) -> None:
        """Remove the files, and write them anew from the jsonl files of the run folder."""
        self._close_files()
        self._iteration, self._n_tokens, self._row = 0, 0, {}
        try:
            for name in (CSV_FILE, JSON_FILE):
                self._folder.path(name).unlink(missing_ok=True)
            shutil.rmtree(self._folder.path(TENSORBOARD_FOLDER), ignore_errors=True)
            self._files = {name: _logger(self._open(name)) for name in self._file_outputs}
        except OSError as error:
            raise RunFolderError(
                f"what logging.outputs names cannot be written in {self._folder.root}: {error.strerror or error}"
            ) from error
        for iteration, kind, record in sorted(self._records(), key=lambda found: found[:2]):
            if kind == 0:
                self.rollout(record)
            elif kind == 1:
                self.training(record)
            else:
                self.evaluation(iteration, record["split"], record["metrics"])
            self._unshown = {}  # but at the time

    def show(self) -> None:
        """Print what is new since the last table, if ``stdout`` is one of the outputs."""
        self._write(self._console, self._unshown)
        self._unshown = {}

    def close(self) -> None:
        """Write the last row, and close the files."""
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
        # As the jsonl files have them, so that a replay gives the same.
        new = {key: value for key, value in to_plain(values).items() if isinstance(value, (int, float, str))}
        self._row.update(new)
        self._unshown.update(new)

    def _write(self, loggers: dict[str, sb3_logger.Logger], values: Mapping[str, Any]) -> None:
        if not values:
            return
        counts = {"time/iterations": self._iteration, "time/total_timesteps": self._n_tokens}
        for name, logger in list(loggers.items()):
            for key, value in {**values, **counts}.items():
                logger.record(key, value)
            try:
                logger.dump(self._n_tokens or self._iteration)
            except Exception as error:  # whatever a writer raises, the jsonl files are the record
                del loggers[name]
                _log.warning(
                    "the output %s failed and is left out from here on (%s); the jsonl files have all", name, error
                )

    def _close_files(self) -> None:
        for logger in self._files.values():
            with contextlib.suppress(Exception):  # what a full disk kept back
                logger.close()

    def _records(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Iteration, kind and content of what the jsonl files hold."""
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
    """With new columns in the order of their names, where stable-baselines3 leaves it to a set."""

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
