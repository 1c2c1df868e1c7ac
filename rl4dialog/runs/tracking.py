"""The records of a run: metrics, predictions and training statistics, on disk and in optional outputs.

File names and line formats are those of RL4LMs, so existing analysis scripts work. The files are authoritative; outputs
and experiment trackers are copies. Checkpoints and the report are handled elsewhere.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.saving import MODEL_FOLDER, save_language_model
from rl4dialog.runs.experiment_trackers.copies import ExperimentTrackers
from rl4dialog.runs.experiment_trackers.tracker import RunDescription
from rl4dialog.runs.progress import PROGRESS_LOGGER_NAME
from rl4dialog.runs.results import Metrics, read_players, write_result
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    LOG_FILE,
    PLAYERS_FILE,
    REPORT_FILE,
    ROLLOUT_INFO_FILE,
    TRAINING_INFO_FILE,
    RunFolder,
)
from rl4dialog.runs.run_logger import RunLogger
from rl4dialog.runs.trust import remember

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOGGER_NAME = "rl4dialog"


class Tracker:
    """Records the progress of a run.

    From its creation (with ``resume``, from :meth:`open`) until :meth:`close`, all messages of the logger
    ``rl4dialog`` and all progress lines are also written to the run's ``log.txt``.

    Args:
        run_folder: Folder for the files.
        config: The resolved config, written to ``config.json``.
        project_name: Project in experiment trackers.
        experiment_name: Name of the run in experiment trackers.
        entity_name: User or team on Weights & Biases.
        resume: Append to ``log.txt``; nothing is written before :meth:`open` is called.
        run_ids: Ids of the runs to continue, by experiment tracker.
        outputs: Additional outputs (see :class:`RunLogger` and :class:`ExperimentTrackers`).
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
        self.run_folder.write_json(CONFIG_FILE, self._config)
        remember(self._config)
        self._log_file = _open_log(self.run_folder.path(LOG_FILE), self._log_mode)
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
        self.run_folder.append_jsonl(ROLLOUT_INFO_FILE, rollout_info)
        self._run_logger.rollout(rollout_info)
        self._trackers.log(rollout_info, "iteration", int(rollout_info["iteration"]))

    def log_training_infos(self, training_info: Mapping[str, Any]) -> None:
        """Append the statistics of one iteration's updates to ``training_info.jsonl``."""
        self.run_folder.append_jsonl(TRAINING_INFO_FILE, training_info)
        self._run_logger.training(training_info)
        self._trackers.log(training_info, "iteration", int(training_info.get("iteration", 1)))

    def log_metrics(self, epoch: int, split_name: str, metrics: Mapping[str, Any]) -> None:
        """Append the corpus scores of an evaluation to ``{split_name}_split_metrics.jsonl``.

        Args:
            epoch: Iteration of the evaluation; 0 is before training.
            split_name: ``train``, ``val`` or ``test``.
            metrics: Score by metric key.
        """
        self.run_folder.append_jsonl(
            _evaluation_files(epoch, split_name)[0], {"epoch": epoch, "metrics": dict(metrics)}
        )
        self._run_logger.evaluation(epoch, split_name, metrics)
        self._trackers.log({f"{split_name}/{key}": value for key, value in metrics.items()}, "epoch", epoch)

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
            with open(self.run_folder.path(metrics_file), encoding="utf-8") as file:
                (found,) = [record for record in map(json.loads, file) if record["epoch"] == epoch]
            with open(self.run_folder.path(predictions_file), encoding="utf-8") as file:
                predictions: list[dict[str, Any]] = json.load(file)
            return {key: math.nan if value is None else value for key, value in found["metrics"].items()}, predictions
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(
                f"{self.run_folder.root} no longer contains the evaluation of epoch {epoch} in {metrics_file} and "
                f"{predictions_file} ({error})"
            ) from error

    def log_players(self, players: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``test_split_players.json``: test metrics of each scripted player."""
        self.run_folder.write_json(PLAYERS_FILE, players)

    def recall_players(self) -> dict[str, dict[str, float]]:
        """Read the metrics of scripted players back; empty if the run has none."""
        return read_players(self.run_folder.root)

    def show(self) -> None:
        """Print the values logged since the last table, if the output ``stdout`` is enabled."""
        self._run_logger.show()

    def log_info(self, message: str) -> None:
        """Write a line to ``log.txt`` and to the other handlers of the logger ``rl4dialog``."""
        self._logger.info(message)

    def save_auto_model(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lora: LoRA | None = None,
        weights: dict[str, Tensor] | None = None,
        folder_name: str = MODEL_FOLDER,
        also: Callable[[Path], None] | None = None,
    ) -> Path:
        """Save model and tokenizer to ``model/``, to be loaded with transformers' Auto classes.

        Weights are saved as safetensors. An existing folder is kept until the new one is complete.

        Args:
            model: The language model.
            tokenizer: Its tokenizer.
            lora: The model's adapters, if any: they are merged into the weights, and also saved separately in
                ``model/adapter/``.
            weights: The model's weights, if they are sharded over processes.
            folder_name: Name of the folder inside the run folder.
            also: Writes further files to the folder.

        Returns:
            The folder.
        """
        with self.run_folder.replacing_folder(folder_name) as folder:
            save_language_model(model, folder, lora, weights)
            tokenizer.save_pretrained(folder)
            if also is not None:
                also(folder)
        return self.run_folder.path(folder_name)

    def close(self, exit_code: int = 0) -> None:
        """Close ``log.txt``, the outputs and the experiment trackers. Further calls do nothing.

        Args:
            exit_code: Any value but 0 marks the runs in experiment trackers as failed.
        """
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
    return f"{split_name}_split_metrics.jsonl", f"epoch_{epoch}_{split_name}_split_predictions.json"


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors, instead of printing a traceback per line on a full disk.

    Essential files are written by `RunFolder`, which raises.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def _open_log(path: Path, mode: str) -> logging.FileHandler:
    try:
        handler = _LogFile(path, mode=mode, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
