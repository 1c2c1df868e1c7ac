"""Files with any JSON in place of what they should contain."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from feedback_files import conversation_rating, correction, preference, rating
from multiwoz_files import write_multiwoz
from rich.console import Console
from run_files import game, write_json, write_lines, write_run

from rl4dialog.core.errors import DataError, RL4DialogError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies, read_queue, write_queue
from rl4dialog.core.files import json_object, json_value
from rl4dialog.data.ratings import read_latest
from rl4dialog.experiments.stand_in_data import write_original
from rl4dialog.experiments.sweep.trials import SPLIT, evaluations
from rl4dialog.runs.comparison import compare_runs
from rl4dialog.runs.listing import list_runs, print_runs
from rl4dialog.runs.report.run_report import write_report
from rl4dialog.runs.results import read_result
from rl4dialog.tasks.camrest import camrest
from rl4dialog.tasks.multiwoz import multiwoz

DEEP = "[" * 100_000 + "]" * 100_000
OTHERS = ("[]", "[1, 2]", "{}", "null", "7", '"x"', DEEP)
PLACE = "@here@"


def replaced(value: Any, depth: int) -> Iterator[Any]:
    """The value with ``PLACE`` instead of each of its parts, down to a depth: of a list, instead of the first one."""
    yield PLACE
    if depth and isinstance(value, dict):
        for key in value:
            yield from ({**value, key: part} for part in replaced(value[key], depth - 1))
    elif depth and isinstance(value, list) and value:
        yield from ([part, *value[1:]] for part in replaced(value[0], depth - 1))


def check_errors(path: Path, use: Callable[[], Any], depth: int = 3, others: Sequence[str] = OTHERS) -> None:
    """Put other JSON in place of each part of a file's first line: only errors that say what is wrong are raised."""
    text = path.read_text(encoding="utf-8")
    first, *following = text.splitlines()
    for changed in replaced(json.loads(first), depth):
        for other in others:
            line = json.dumps(changed).replace(json.dumps(PLACE), other)
            path.write_text("\n".join([line, *following]) + "\n", encoding="utf-8")
            try:
                use()
            except RL4DialogError as error:
                assert len(str(error)) < 1500
    path.write_text(text, encoding="utf-8")


def test_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        json_value(DEEP)
    with pytest.raises(ValueError, match=r"must be a JSON object, not \[1\]"):
        json_object("[1]")


def test_key_given_twice_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="the key 'b' twice"):
        json_value('{"a": [{"c": 1, "b": 1, "b": 2}]}')


@pytest.mark.parametrize(
    "given",
    [rating("r", 1, persona="p"), preference("a", "b", 0), correction("a", "b"), conversation_rating("r", -1)],
    ids=lambda given: given.kind,
)
def test_feedback_files(tmp_path: Path, given: Any) -> None:
    path = tmp_path / "feedback.jsonl"
    write_lines(path, [given.record()])
    check_errors(path, lambda: read_latest(path))
    for persona in ([], {}, 0, False):
        write_lines(path, [{**given.record(), "persona": persona}])
        with pytest.raises(DataError, match=r":1: persona must be a text, not"):
            read_latest(path)


def test_queue_files(tmp_path: Path) -> None:
    path = tmp_path / "queue.jsonl"
    write_queue(path, [QueuedReplies("i", ["hello"], [JudgedReply("m", "a"), JudgedReply("m", "b")], score=0.5)])
    check_errors(path, lambda: read_queue(path))


@pytest.mark.parametrize(
    ("write", "read", "files"),
    [
        (
            lambda folder: write_original("camrest", folder),
            lambda folder: camrest(folder, min_count=1),
            ("db/CamRestDB", "val"),
        ),
        (
            write_multiwoz,
            lambda folder: multiwoz(folder, splits={"train": "val"}, min_count=1),
            ("db/hotel_db", "db/taxi_db", "val"),
        ),
    ],
    ids=["camrest", "multiwoz"],
)
def test_task_files(tmp_path: Path, write: Any, read: Any, files: tuple[str, ...]) -> None:
    folder = Path(write(tmp_path))
    for path in [folder / f"{name}.json" for name in files]:
        text = json.dumps(json.loads(path.read_text()))  # on one line
        path.write_text(text)
        check_errors(path, lambda: read(str(folder)))
        path.write_text("[1, 2]")
        with pytest.raises(DataError, match=path.stem):
            read(str(folder))
        path.write_text(text)


def test_run_folders(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", n_iters=2)
    other = write_run(tmp_path / "runs" / "b", n_iters=2)
    write_json(run / "result.json", {"iterations": 2, "test": {"before": {"m": 0.5}, "after": {"m": 1.0}}})
    write_json(run / "provenance.json", {"git": {"commit": "abc", "dirty": False}, "packages": {"torch": "1"}})
    write_json(run / "test_split_players.json", {"best": {"m": 1.0}})
    write_json(run / "test_split_references.json", {"m": 1.0})
    write_lines(run / "warnings.jsonl", [{"iteration": 1, "message": "m", "advice": "a", "name": "n"}])
    write_lines(run / f"{SPLIT}_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 1.0}}])
    write_json(run / "epoch_2_test_split_predictions.json", [game(i, ("q", "a"), m=1.0) for i in range(2)])
    uses: list[Callable[[], Any]] = [
        lambda: write_report(run),
        lambda: print_runs(list_runs(tmp_path / "runs"), console=Console(file=io.StringIO())),
        lambda: compare_runs(run, other),
        lambda: read_result(run),
        lambda: evaluations(run, "m"),
    ]
    for path in sorted(run.glob("*.json*")):
        for use in uses:
            check_errors(
                path,
                use,
                depth=4 if "predictions" in path.name and use is uses[0] else 1,
                others=("[1, 2]", "null", DEEP),
            )
