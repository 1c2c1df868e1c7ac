"""The log of conversations: one file, whatever the number of processes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from two_processes import in_two_processes

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs.run_folder import CONVERSATIONS_FILE, RunFolder
from rl4dialog.training.callbacks.conversation_log import ConversationLogCallback


def dialogue(id: str) -> Dialogue:
    return Dialogue(id, (Turn("u", PARTNER), Turn(f"said {id}", AGENT)), n_given=1)


def log(tracker: Any, iteration: int, *ids: str) -> None:
    """Log the rollout of an iteration."""
    callback = ConversationLogCallback(tracker)
    callback.model = SimpleNamespace(  # type: ignore[assignment]
        iteration=iteration, collector=SimpleNamespace(dialogues=list(map(dialogue, ids)))
    )
    callback._on_rollout_end()


def logged(folder: RunFolder) -> list[tuple[int, str, str, str]]:
    """Iteration, id, sample and last text of each line."""
    text = gzip.decompress(folder.path(CONVERSATIONS_FILE).read_bytes()).decode()
    records = map(json.loads, text.splitlines())
    return [(each["iteration"], each["id"], each["sample_id"], each["messages"][-1]["content"]) for each in records]


def test_each_rollout_is_appended(tmp_path: Path) -> None:
    tracker = SimpleNamespace(run_folder=RunFolder(tmp_path, "p", "e"))
    log(tracker, 1, "a", "b")
    log(tracker, 2, "a")
    assert logged(tracker.run_folder) == [
        (1, "1_0", "a", "said a"),
        (1, "1_1", "b", "said b"),
        (2, "2_0", "a", "said a"),
    ]


def test_main_process_writes_the_conversations_of_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")

    def work(process: int) -> None:
        log(SimpleNamespace(run_folder=folder) if process == 0 else None, 3, f"of {process}", f"too of {process}")

    in_two_processes(work, tmp_path)
    assert [sample for _, _, sample, _ in logged(folder)] == ["of 0", "too of 0", "of 1", "too of 1"]
    assert len({id for _, id, _, _ in logged(folder)}) == 4
