"""The records of a run: metrics, predictions and training statistics, on disk and in optional outputs.

File names and line formats are those of RL4LMs. The jsonl files are authoritative. The outputs of ``logging: {outputs:
[...]}`` are copies in other formats; if one fails, it is disabled with a warning.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stable_baselines3.common import logger as sb3_logger

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.core.files import json_value, naming_errors, to_plain
from rl4dialog.core.run_format import numbered
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.saving import MODEL_FOLDER, save_language_model
from rl4dialog.runs.experiment_trackers import ExperimentTrackers, RunDescription
from rl4dialog.runs.progress import PROGRESS_LOGGER_NAME
from rl4dialog.runs.reading import read_metrics
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    CSV_FILE,
    JSON_FILE,
    LOG_FILE,
    PLAYERS_FILE,
    REPORT_FILE,
    ROLLOUT_INFO_FILE,
    TENSORBOARD_FOLDER,
    TRAINING_INFO_FILE,
    Metrics,
    RunFolder,
    write_result,
)
from rl4dialog.runs.trust import remember

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOGGER_NAME = "rl4dialog"
_METRICS_SUFFIX = "_split_metrics.jsonl"
# stable-baselines3's table truncates longer keys, and raises an error if two become equal.
_MAX_KEY_LENGTH = 200


class Tracker:
    """Records the progress of a run, in its folder, in outputs, and in experiment trackers by project and name.

    From its creation (with ``resume``, from :meth:`open`) until :meth:`close`, all messages of the logger ``rl4dialog``
    and all progress lines are also written to the run's ``log.txt``. ``run_ids`` are the runs to continue, by tracker.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        config: Mapping[str, Any],
        project_name: str,
        experiment_name: str,
        entity_name: str | None = None,
        resume: bool = False,
        run_ids: Mapping[str, str] | None = None,
        outputs: Collection[str] = (),
    ) -> None:
        self.run_folder = run_folder
        self._config, self._outputs, self._log_mode = config, outputs, "a" if resume else "w"
        self._logger = logging.getLogger(LOGGER_NAME)
        self._log_file: logging.FileHandler | None = None
        self._run_logger: RunLogger
        self._about = RunDescription(run_folder.root, project_name, experiment_name, config, entity_name)
        self._run_ids = run_ids or {}
        self._trackers: ExperimentTrackers
        if not resume:
            self.open()

    def open(self) -> None:
        """Start writing; for a resumed run, call this once its checkpoint is accepted and its folder is cut back."""
        self.run_folder.write_json(CONFIG_FILE, numbered(self._config))
        remember(self._config)
        path = self.run_folder.path(LOG_FILE)
        with naming_errors(path):
            self._log_file = _LogFile(path, mode=self._log_mode, encoding="utf-8")
        self._log_file.setLevel(logging.INFO)
        self._log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._level_before = self._logger.level
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)
        for name in (LOGGER_NAME, PROGRESS_LOGGER_NAME):
            logging.getLogger(name).addHandler(self._log_file)
        self._run_logger = RunLogger(self.run_folder, self._outputs)
        self._trackers = ExperimentTrackers(self._outputs, self._about, self._run_ids)

    @property
    def run_ids(self) -> dict[str, str]:
        """Ids of the runs in experiment trackers."""
        return self._trackers.run_ids

    def log_rollout_infos(self, rollout_info: Mapping[str, Any]) -> None:
        """Append the statistics of one iteration's rollouts to ``rollout_info.jsonl``."""
        self._log(ROLLOUT_INFO_FILE, rollout_info)
        self._trackers.log(rollout_info, "iteration", int(rollout_info["iteration"]))

    def log_training_infos(self, training_info: Mapping[str, Any]) -> None:
        """Append the statistics of one iteration's updates to ``training_info.jsonl``."""
        self._log(TRAINING_INFO_FILE, training_info)
        self._trackers.log(training_info, "iteration", _iteration(TRAINING_INFO_FILE, training_info))

    def log_metrics(self, epoch: int, split_name: str, metrics: Mapping[str, Any]) -> None:
        """Append the scores of an evaluation to ``{split_name}_split_metrics.jsonl``; epoch 0 is before training."""
        self._log(_evaluation_files(epoch, split_name)[0], {"epoch": epoch, "metrics": dict(metrics)})
        self._trackers.log({f"{split_name}/{key}": value for key, value in metrics.items()}, "epoch", epoch)

    def _log(self, name: str, record: Mapping[str, Any]) -> None:
        self.run_folder.append_jsonl(name, record)
        self._run_logger.add(name, record)

    def log_predictions(self, epoch: int, split_name: str, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Write ``epoch_{epoch}_{split_name}_split_predictions.json``, one object per generated text."""
        file = self.run_folder.write_json(_evaluation_files(epoch, split_name)[1], list(predictions))
        self._trackers.log_predictions(split_name, epoch, predictions, file)

    def log_result(self, iterations: int, before: Mapping[str, Metrics], after: Mapping[str, Metrics]) -> None:
        """Write ``result.json``, which marks the run as complete; see :func:`write_result`."""
        write_result(self.run_folder, iterations, before, after)
        values = {
            f"result/{split}/{when}/{key}": value
            for when, metrics in (("before", before), ("after", after))
            for split in metrics
            for key, value in metrics[split].items()
        }
        self._trackers.log_result(values, iterations, self.run_folder.path(REPORT_FILE))

    def recall(self, epoch: int, split_name: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Read the metrics and predictions of an evaluation back."""
        metrics_file, predictions_file = _evaluation_files(epoch, split_name)
        try:
            metrics = read_metrics(self.run_folder.path(metrics_file), [])[epoch]
            return metrics, json_value(self.run_folder.path(predictions_file).read_bytes())
        except (OSError, ValueError, KeyError, DataError) as error:
            lost = f"the evaluation of epoch {epoch} in {metrics_file} and {predictions_file}"
            raise RunFolderError(f"{self.run_folder.root} no longer contains {lost} ({error})") from error

    def log_players(self, players: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``test_split_players.json``: test metrics of each scripted player."""
        self.run_folder.write_json(PLAYERS_FILE, players)

    def show(self) -> None:
        """Print the values logged since the last table, if the output ``stdout`` is enabled."""
        self._run_logger.show()

    def save_auto_model(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lora: LoRA | None = None,
        weights: dict[str, Tensor] | None = None,
        folder_name: str = MODEL_FOLDER,
        also: Callable[[Path], None] | None = None,
    ) -> Path:
        """Save for transformers' Auto classes, with LoRA merged and in ``adapter/``; gathered ``weights``, if any."""
        with self.run_folder.replacing_folder(folder_name) as folder:
            save_language_model(model, folder, lora, weights)
            tokenizer.save_pretrained(folder)
            if also is not None:
                also(folder)
        return self.run_folder.path(folder_name)

    def close(self, exit_code: int = 0) -> None:
        """Close ``log.txt``, the outputs and the trackers, once; any code but 0 marks their runs as failed."""
        if self._log_file is None or self._log_file not in self._logger.handlers:
            return
        self._trackers.finish(failed=bool(exit_code))
        self._run_logger.close()
        for name in (LOGGER_NAME, PROGRESS_LOGGER_NAME):
            logging.getLogger(name).removeHandler(self._log_file)
        self._logger.setLevel(self._level_before)
        self._log_file.close()


def _evaluation_files(epoch: int, split_name: str) -> tuple[str, str]:
    """Names of the metrics file and the predictions file."""
    return f"{split_name}{_METRICS_SUFFIX}", f"epoch_{epoch}_{split_name}_split_predictions.json"


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors, such as a full disk: `RunFolder` writes what is essential, and raises."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class RunLogger:
    """Collects the values of an iteration in one row, and writes it with stable-baselines3 when the next one starts.

    The step is ``time/total_timesteps``, the agent tokens or environment steps so far; without rollouts, the iteration.
    Row 0 is the evaluation before training. A resumed run rebuilds the outputs, so no row is lost or duplicated.
    """

    def __init__(self, run_folder: RunFolder, outputs: Collection[str]) -> None:
        self._folder = run_folder
        # One logger per output, so that a failing output is disabled alone.
        self._console: dict[str, sb3_logger.Logger] = {}
        if "stdout" in outputs:
            table = sb3_logger.make_output_format("stdout", ".")
            assert isinstance(table, sb3_logger.HumanOutputFormat)
            table.max_length = _MAX_KEY_LENGTH
            self._console["stdout"] = _logger(table)
        self._file_outputs = [name for name in ("csv", "json", "tensorboard") if name in outputs]
        self._files: dict[str, sb3_logger.Logger] = {}
        self._iteration, self._n_timesteps = 0, 0
        self._row: dict[str, Any] = {}
        self._unshown: dict[str, Any] = {}  # values of the row not yet shown on the console
        self.replay()

    def add(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a record of a jsonl file."""
        iteration, n_timesteps = _iteration(name, record), 0
        values = {key: value for key, value in record.items() if key != "iteration"}
        if name == ROLLOUT_INFO_FILE:
            n_timesteps = int(record.get("rollout/tokens", record.get("rollout/timesteps", 0)))
        elif name == TRAINING_INFO_FILE:
            values = {key if "/" in key else f"train/{key}": value for key, value in values.items()}
        else:
            split = name.removesuffix(_METRICS_SUFFIX)
            values = {f"eval/{split}/{key}": value for key, value in record["metrics"].items()}
        if iteration != self._iteration:
            self._end()
            self._iteration = iteration
        self._n_timesteps += n_timesteps
        # Converted as in the jsonl files, so that a replay gives identical rows.
        new = {key: value for key, value in to_plain(values).items() if isinstance(value, (int, float, str))}
        self._row.update(new)
        self._unshown.update(new)

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
        metrics = [f"{split}{_METRICS_SUFFIX}" for split in ("val", "test", "train")]
        names = [ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, *metrics]
        found = [(name, record) for name in names for record in self._folder.read_jsonl(name)]
        for name, record in sorted(found, key=lambda each: _iteration(*each)):
            self.add(name, record)
            self._unshown = {}  # old values are not printed again

    def show(self) -> None:
        """Print values that are new since the last table, if ``stdout`` is one of the outputs."""
        self._write(self._console, self._unshown)
        self._unshown = {}

    def close(self) -> None:
        """Write the last row and close the files."""
        self._end()
        self._close_files()

    def _end(self) -> None:
        self.show()
        self._write(self._files, self._row)
        self._row = {}

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
                message = "the output %s failed and is disabled (%s); the jsonl files are complete"
                logging.getLogger(__name__).warning(message, name, error)

    def _close_files(self) -> None:
        for logger in self._files.values():
            with contextlib.suppress(Exception):  # a full disk may fail on the final flush
                logger.close()

    def _open(self, output: str) -> sb3_logger.KVWriter:
        if output == "csv":
            return _CSVOutput(str(self._folder.path(CSV_FILE)))
        root = self._folder.path(TENSORBOARD_FOLDER) if output == "tensorboard" else self._folder.root
        return sb3_logger.make_output_format(output, str(root))


def _iteration(name: str, record: Mapping[str, Any]) -> int:
    """Iteration of a record of a jsonl file."""
    return int(record["epoch" if name.endswith(_METRICS_SUFFIX) else "iteration"])


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
