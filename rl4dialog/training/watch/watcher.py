"""Runs all checks after every iteration, and reports a problem once when it starts, not while it lasts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tqdm.contrib.logging import logging_redirect_tqdm

from rl4dialog.runs.run_folder import ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, WARNINGS_FILE, RunFolder
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.watch.checks import BEST_ADVICE, CHECKS, History, RunFacts, already_best

# A problem is reported again only after it was absent for this many iterations. Otherwise a value near a threshold
# would be reported repeatedly.
QUIET_ITERATIONS = 10


class Trouble(NamedTuple):
    """A finding at the start of a problem: the check's name, a description and advice."""

    iteration: int
    name: str
    message: str
    advice: str


class Watcher:
    """Applies the checks to the history of a run.

    Its reports depend on the records only, so a resumed run does not repeat any.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts, self._history = facts, History()
        self._last_seen: dict[str, int] = {}

    def observe(self, record: Mapping[str, Any]) -> list[Trouble]:
        """Problems that start in the next iteration, of which the logged values are given."""
        self._history.append(record)
        iteration = int(record["iteration"])
        started = []
        for check in CHECKS:
            if message := check.rule(self._history, self._facts):
                last = self._last_seen.get(check.name, -math.inf)
                self._last_seen[check.name] = iteration
                if iteration - last > QUIET_ITERATIONS:
                    started.append(Trouble(iteration, check.name, message, check.advice))
        return started


_logger = logging.getLogger(__name__)


class WatchCallback(IterationCallback):
    """Checks the logged values of each iteration when its training is finished.

    In a resumed run, earlier values are read from the files.
    """

    def __init__(self, facts: RunFacts, run_folder: RunFolder) -> None:
        super().__init__()
        self._watcher, self._run_folder = Watcher(facts), run_folder
        self._rollout: dict[str, Any] | None = None  # of the iteration whose training has not finished

    def check_start(self, rewards: Sequence[float]) -> None:
        """Warn before training if the model already earns about the highest reward."""
        if message := already_best(rewards):
            self._report(Trouble(0, "reward_at_best", message, BEST_ADVICE))

    @property
    def summary(self) -> str | None:
        """Number of warnings and where to find them; ``None`` without warnings."""
        warnings = self._run_folder.read_jsonl(WARNINGS_FILE)
        if not warnings:
            return None
        names = ", ".join(dict.fromkeys(warning["name"] for warning in warnings))
        count = f"{len(warnings)} warning{'s' * (len(warnings) > 1)}"
        return f"{count} ({names}), with advice, in {self._run_folder.path(WARNINGS_FILE)}"

    def _on_training_start(self) -> None:
        reported = {(warning["iteration"], warning["name"]) for warning in self._run_folder.read_jsonl(WARNINGS_FILE)}
        training = {record.get("iteration"): record for record in self._run_folder.read_jsonl(TRAINING_INFO_FILE)}
        for rollout in self._run_folder.read_jsonl(ROLLOUT_INFO_FILE):
            if (iteration := rollout.get("iteration")) not in training:
                continue
            for trouble in self._watcher.observe({**rollout, **training[iteration]}):
                if (trouble.iteration, trouble.name) not in reported:
                    self._report(trouble)

    def _on_rollout_end(self) -> None:
        self._rollout = {"iteration": self.iteration, **self._values("rollout/")}

    def _act(self) -> None:
        if self._rollout is not None:
            record, self._rollout = {**self._rollout, **self._values("train/")}, None
            for trouble in self._watcher.observe(record):
                self._report(trouble)

    def _values(self, prefix: str) -> dict[str, Any]:
        return {key: value for key, value in self.logger.name_to_value.items() if key.startswith(prefix)}

    def _report(self, trouble: Trouble) -> None:
        record = trouble._asdict()
        self._run_folder.append_jsonl(WARNINGS_FILE, record)
        with logging_redirect_tqdm():  # above the progress bar, not in it
            _logger.warning("iteration %(iteration)d: %(message)s (%(name)s). %(advice)s", record)
