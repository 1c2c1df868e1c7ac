"""The records of a run: metrics, predictions and training statistics, on disk and in optional outputs.

File names and line formats are those of RL4LMs, so existing analysis scripts work. The files are authoritative; wandb
is a copy, and a wandb failure is only a warning. Checkpoints and the report are handled elsewhere.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import netrc
import os
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.saving import MODEL_FOLDER, save_language_model
from rl4dialog.runs.progress import PROGRESS_LOGGER_NAME
from rl4dialog.runs.results import read_players
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    LOG_FILE,
    PLAYERS_FILE,
    ROLLOUT_INFO_FILE,
    TRAINING_INFO_FILE,
    RunFolder,
    to_plain,
)
from rl4dialog.runs.run_logger import RunLogger

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOGGER_NAME = "rl4dialog"

_logger = logging.getLogger(__name__)
_MAX_TABLE_ROWS = 100
_WANDB_URL = "https://api.wandb.ai"


class Tracker:
    """Records the progress of a run.

    From its creation (with ``resume``, from :meth:`open`) until :meth:`close`, all messages of the logger
    ``rl4dialog`` and all progress lines are also written to the run's ``log.txt``.

    Args:
        run_folder: Folder for the files.
        config: The resolved config, written to ``config.json``.
        project_name: Project on wandb.
        experiment_name: Name of the run on wandb.
        entity_name: User or team on wandb.
        log_to_wandb: Also log to wandb; without an API key in its offline mode, inside the run folder.
        resume: Append to ``log.txt``; nothing is written before :meth:`open` is called.
        wandb_run_id: Id of the wandb run to resume.
        outputs: Additional outputs (see :class:`RunLogger`); ``wandb`` is the same as ``log_to_wandb``.

    Raises:
        RunFolderError: If a file cannot be written; this also applies to all methods that write.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        config: Mapping[str, Any],
        project_name: str,
        experiment_name: str,
        entity_name: str | None = None,
        log_to_wandb: bool = False,
        resume: bool = False,
        wandb_run_id: str | None = None,
        outputs: Collection[str] = (),
    ) -> None:
        self.run_folder = run_folder
        self._config, self._outputs, self._log_mode = config, outputs, "a" if resume else "w"
        self._logger = logging.getLogger(LOGGER_NAME)
        self._log_file: logging.FileHandler | None = None
        self._run_logger: RunLogger
        self._wandb_run: Any = None
        self._start_wandb: Callable[[], Any] | None = None
        if log_to_wandb or "wandb" in outputs:
            about = (run_folder.root, config, project_name, experiment_name, entity_name, wandb_run_id)
            self._start_wandb = functools.partial(_start_wandb, *about)
        if not resume:
            self.open()

    def open(self) -> None:
        """Start writing; for a resumed run, call this once its checkpoint is accepted and its folder is cut back."""
        self.run_folder.write_json(CONFIG_FILE, self._config)
        self._log_file = _open_log(self.run_folder.path(LOG_FILE), self._log_mode)
        self._level_before = self._logger.level
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)
        for name in (LOGGER_NAME, PROGRESS_LOGGER_NAME):
            logging.getLogger(name).addHandler(self._log_file)
        self._run_logger = RunLogger(self.run_folder, self._outputs)
        if self._start_wandb is not None:
            self._wandb_run = self._start_wandb()

    @property
    def wandb_run_id(self) -> str | None:
        """Id of the wandb run, if there is one."""
        return None if self._wandb_run is None else str(self._wandb_run.id)

    def log_rollout_infos(self, rollout_info: Mapping[str, Any]) -> None:
        """Append the statistics of one iteration's rollouts to ``rollout_info.jsonl``."""
        self.run_folder.append_jsonl(ROLLOUT_INFO_FILE, rollout_info)
        self._run_logger.rollout(rollout_info)
        self._to_wandb(lambda: self._wandb_run.log(to_plain(rollout_info)))

    def log_training_infos(self, training_info: Mapping[str, Any]) -> None:
        """Append the statistics of one iteration's updates to ``training_info.jsonl``."""
        self.run_folder.append_jsonl(TRAINING_INFO_FILE, training_info)
        self._run_logger.training(training_info)
        self._to_wandb(lambda: self._wandb_run.log(to_plain(training_info)))

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
        self._to_wandb(
            lambda: self._wandb_run.log(
                {"epoch": epoch, **{f"{split_name}/{key}": value for key, value in to_plain(metrics).items()}}
            )
        )

    def log_predictions(self, epoch: int, split_name: str, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Write ``epoch_{epoch}_{split_name}_split_predictions.json``, one object per generated text."""
        self.run_folder.write_json(_evaluation_files(epoch, split_name)[1], list(predictions))
        self._to_wandb(
            lambda: self._wandb_run.log({f"{split_name}_predictions": _wandb_table(predictions), "epoch": epoch})
        )

    def recall(self, epoch: int, split_name: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Read the metrics and predictions of an evaluation back.

        Raises:
            RunFolderError: If they do not exist.
        """
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
        """Write ``test_split_players.json``: test metrics of each scripted player of the datapool."""
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

        Returns:
            The folder.
        """
        with self.run_folder.replacing_folder(folder_name) as folder:
            save_language_model(model, folder, lora, weights)
            tokenizer.save_pretrained(folder)
        return self.run_folder.path(folder_name)

    def close(self, exit_code: int = 0) -> None:
        """Close ``log.txt``, the outputs and the wandb run. Further calls do nothing.

        Args:
            exit_code: Any value but 0 marks the wandb run as failed.
        """
        self._to_wandb(lambda: self._wandb_run.finish(exit_code=exit_code))
        self._wandb_run = None
        if self._log_file is not None and self._log_file in self._logger.handlers:
            self._run_logger.close()
            for name in (LOGGER_NAME, PROGRESS_LOGGER_NAME):
                logging.getLogger(name).removeHandler(self._log_file)
            self._logger.setLevel(self._level_before)
            self._log_file.close()

    def _to_wandb(self, send: Callable[[], Any]) -> None:
        if self._wandb_run is None:
            return
        try:
            send()
        except Exception as error:  # never fatal, because the files are authoritative
            self._wandb_run = None
            _logger.warning("wandb failed and is disabled (%s); the run folder is complete", error)


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


def _start_wandb(
    root: Path, config: Mapping[str, Any], project: str, name: str, entity: str | None, run_id: str | None
) -> Any:
    """Start a wandb run; ``None`` with a warning if that fails."""
    try:
        import wandb
    except ImportError as error:
        _logger.warning("--log_to_wandb is ignored: %s; install it with: pip install wandb", error)
        return None
    mode = None
    if not os.environ.get("WANDB_MODE") and not _has_wandb_key():
        mode = "offline"
        _logger.info("no wandb API key: wandb runs offline in %s; upload later with: wandb sync", root / "wandb")
    # Without an online attempt there is nothing to fall back from.
    modes: list[Any] = ["offline"] if mode or os.environ.get("WANDB_MODE") == "offline" else [None, "offline"]
    for attempt in modes:
        try:
            run = wandb.init(
                project=project,
                name=name,
                entity=entity,
                dir=str(root),
                config=to_plain(config),
                id=run_id,
                resume=None if run_id is None else "allow",
                mode=attempt,  # type: ignore[arg-type]
                settings=wandb.Settings(silent=True, console="off", init_timeout=30),
            )
            # Values that a resumed run sends again get the same step.
            for names, step in (("*", "iteration"), ("val/*", "epoch"), ("test/*", "epoch")):
                run.define_metric(names, step_metric=step)
            return run
        except Exception as error:  # wandb raises many exception types
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            _logger.warning("cannot start wandb (%s): %s", attempt or "online", reason)
    return None


def _has_wandb_key() -> bool:
    """Whether wandb can log in without a prompt: by environment, or by the netrc file written by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or _WANDB_URL).netloc
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(str(Path(path).expanduser())).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _wandb_table(predictions: Sequence[Mapping[str, Any]]) -> Any:
    import wandb

    columns: list[Any] = list(predictions[0]) if predictions else []
    rows = [[_wandb_cell(row.get(column)) for column in columns] for row in predictions[:_MAX_TABLE_ROWS]]
    return wandb.Table(columns=columns, data=rows)  # type: ignore[arg-type]


def _wandb_cell(value: Any) -> Any:
    """A value of a table; conversations are text, as wandb refuses rows whose nested values have different keys."""
    plain = to_plain(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (list, dict)) else plain
