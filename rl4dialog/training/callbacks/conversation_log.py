"""Writes the conversations of rollouts to the run folder, for offline learning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rl4dialog.core.types import Dialogue
from rl4dialog.data.conversations.record import logged_record
from rl4dialog.functional.distributed import all_gather_object
from rl4dialog.runs.run_folder import CONVERSATIONS_FILE
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback


class ConversationLogCallback(IterationCallback):
    """Appends the conversations of each rollout to ``conversations.jsonl.gz``.

    In data-parallel runs, the main process writes those of all processes, in the order of the processes.

    Args:
        tracker: The run's tracker; ``None`` in a process that does not write.
    """

    def __init__(self, tracker: Tracker | None) -> None:
        super().__init__()
        self._tracker = tracker

    def _on_rollout_end(self) -> None:
        algorithm: Any = self.model
        found = [dialogue for each in all_gather_object(algorithm.collector.dialogues) for dialogue in each]
        if self._tracker is not None:
            self._tracker.run_folder.append_compressed(CONVERSATIONS_FILE, self._records(found))

    def _records(self, dialogues: list[Dialogue]) -> Iterator[dict[str, Any]]:
        for number, dialogue in enumerate(dialogues):
            about = {"iteration": self.iteration, "sample_id": dialogue.id}
            yield {**about, **logged_record(replace(dialogue, id=f"{self.iteration}_{number}"))}
