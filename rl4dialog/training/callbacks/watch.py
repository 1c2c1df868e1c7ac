"""Warnings during a run, written to the console, ``log.txt`` and ``warnings.jsonl``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm.contrib.logging import logging_redirect_tqdm

from rl4dialog.runs.run_folder import ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, WARNINGS_FILE, RunFolder
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.watch.check import RunFacts
from rl4dialog.training.watch.learning import BEST_ADVICE, already_best
from rl4dialog.training.watch.watcher import Trouble, Watcher

_logger = logging.getLogger(__name__)


class WatchCallback(IterationCallback):
    """Checks the logged values of each iteration when its training is finished.

    In a resumed run, earlier values are read from the files.

    Args:
        facts: Settings that affect how values are judged.
        run_folder: Folder for ``warnings.jsonl``.
    """

    def __init__(self, facts: RunFacts, run_folder: RunFolder) -> None:
        super().__init__()
        self._watcher, self._run_folder = Watcher(facts), run_folder
        self._rollout: dict[str, Any] | None = None  # of the iteration whose training has not finished

    def check_start(self, rewards: Sequence[float]) -> None:
        """Warn before training if the model already earns about the highest reward.

        Args:
            rewards: Reward of each val reply of the initial model.
        """
        if message := already_best(rewards):
            self._report(Trouble(0, "reward_at_best", message, BEST_ADVICE))

    @property
    def summary(self) -> str | None:
        """Number of warnings and where to find them; ``None`` without warnings."""
        warnings = self._run_folder.read_jsonl(WARNINGS_FILE)
        if not warnings:
            return None
        names = ", ".join(dict.fromkeys(warning["name"] for warning in warnings))
        count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
        return f"{count} ({names}), with advice, in {self._run_folder.path(WARNINGS_FILE)}"

    def _on_training_start(self) -> None:
        reported = {(warning["iteration"], warning["name"]) for warning in self._run_folder.read_jsonl(WARNINGS_FILE)}
        for record in _logged(self._run_folder):
            for trouble in self._watcher.observe(record):
                if (trouble.iteration, trouble.name) not in reported:
                    self._report(trouble)

    def _on_rollout_end(self) -> None:
        self._rollout = {"iteration": self.iteration, **self._values("rollout/")}

    def _on_rollout_start(self) -> None:
        self._observe()

    def _on_training_end(self) -> None:
        self._observe()

    def _observe(self) -> None:
        if self._rollout is None:
            return
        record, self._rollout = {**self._rollout, **self._values("train/")}, None
        for trouble in self._watcher.observe(record):
            self._report(trouble)

    def _values(self, prefix: str) -> dict[str, Any]:
        return {key: value for key, value in self.logger.name_to_value.items() if key.startswith(prefix)}

    def _report(self, trouble: Trouble) -> None:
        self._run_folder.append_jsonl(WARNINGS_FILE, dataclasses.asdict(trouble))
        with logging_redirect_tqdm():  # above the progress bar, not in it
            _logger.warning(
                "iteration %d: %s (%s). %s", trouble.iteration, trouble.message, trouble.name, trouble.advice
            )


def _logged(run_folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the logged values of earlier iterations from the files."""
    training = {record.get("iteration"): record for record in run_folder.read_jsonl(TRAINING_INFO_FILE)}
    for record in run_folder.read_jsonl(ROLLOUT_INFO_FILE):
        if record.get("iteration") in training:
            yield {**record, **training[record["iteration"]]}
