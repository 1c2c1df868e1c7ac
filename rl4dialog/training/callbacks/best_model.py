"""Keeps the model of the best evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.progress import say
from rl4dialog.runs.run_folder import BEST_MODEL_FOLDER
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.callbacks.history import EvaluationResult, Key, MetricHistory, Mode

_logger = logging.getLogger(__name__)


class SaveBestModel(IterationCallback):
    """Saves the model with the best evaluation on the val split to ``best_model/``, in transformers' format.

    The model before training is included. A better model replaces the whole folder. If writing fails, a warning is
    logged.

    Args:
        metric: Metric key in ``val_split_metrics.jsonl``.
        mode: ``max`` if higher is better, ``min`` if lower is.
        evaluations: The run's results; provided by the toolkit.
        save_model: Saves the model to a folder of the run; provided by the toolkit.
    """

    def __init__(
        self,
        metric: Key,
        mode: Mode = "max",
        evaluations: Sequence[EvaluationResult] = (),
        save_model: Callable[[str], Any] = lambda _: None,
    ) -> None:
        super().__init__()
        self._history = MetricHistory(evaluations, metric, mode, "callback 'save_best_model'")
        self._metric, self._save_model = metric, save_model
        self._saved: int | None = None

    def _on_training_start(self) -> None:
        self._history.check()

    def _on_rollout_start(self) -> None:
        self._save_if_best()

    def _on_training_end(self) -> None:
        self._save_if_best()

    def _save_if_best(self) -> None:
        best = self._history.best()
        if best is None or best[0] != self.iteration or best[0] == self._saved:
            return
        self._saved = best[0]
        try:
            self._save_model(BEST_MODEL_FOLDER)
        except RunFolderError as error:
            _logger.warning("best_model/ could not be updated to iteration %d, the best so far: %s", best[0], error)
            return
        say(f"best model so far: val {self._metric} {best[1]:.4g} after iteration {best[0]}, saved in best_model/")
