"""Files with anything in them, lines and folders that are whole, whatever happened before."""

import csv
import errno
import functools
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from feature_rows import rows_of_features
from feedback_files import conversation_rating, correction, preference, rating
from rich.console import Console
from run_files import game, write_json, write_lines, write_run

from rl4dialog.core import files
from rl4dialog.core.errors import DataError, RL4DialogError, RunFolderError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies, check_feedback_file, read_queue, write_queue
from rl4dialog.core.files import (
    append_record,
    json_object,
    json_value,
    read_manifest,
    sync_folder,
    whole_lines,
    write_manifest,
    write_records,
)
from rl4dialog.data.ratings import read_latest
from rl4dialog.inference.loading import read_run_config
from rl4dialog.runs.listing import list_runs, print_runs
from rl4dialog.runs.report.pages import write_report
from rl4dialog.runs.run_folder import RunFolder, only_writer, read_result

DEEP = "[" * 100_000 + "]" * 100_000
OTHERS = ("[]", "[1, 2]", "{}", "null", "7", '"x"', DEEP)
PLACE = "@here@"


def replaced(value, depth):
    """The value with ``PLACE`` instead of each of its parts, down to a depth: of a list, instead of the first one."""
    yield PLACE
    if depth and isinstance(value, dict):
        for key in value:
            yield from ({**value, key: part} for part in replaced(value[key], depth - 1))
    elif depth and isinstance(value, list) and value:
        yield from ([part, *value[1:]] for part in replaced(value[0], depth - 1))


def check_errors(path, use, depth=3, others=OTHERS):
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


def test_deep_nesting_huge_numbers_and_a_key_given_twice_are_value_errors():
    for text in ('{"a": [1, -%s]}', b'{"a": [1, %s]}'):
        digits = "9" * 308
        value = json_value(text % (digits.encode() if isinstance(text, bytes) else digits))
        assert abs(float(value["a"][1])) > 1e307
        with pytest.raises(ValueError, match="it has a number of 309 digits"):
            json_value(text % (b"9" * 309 if isinstance(text, bytes) else "9" * 309))
    assert json_value(f'["{"9" * 400}", 7]') == ["9" * 400, 7]
    with pytest.raises(ValueError, match="nested too deeply"):
        json_value(DEEP)
    with pytest.raises(ValueError, match=r"must be a JSON object, not \[1\]"):
        json_object("[1]")
    with pytest.raises(ValueError, match="the key 'b' twice"):
        json_value('{"a": [{"c": 1, "b": 1, "b": 2}]}')


@pytest.mark.parametrize(
    "given",
    [rating("r", 1, persona="p"), preference("a", "b", 0), correction("a", "b"), conversation_rating("r", -1)],
    ids=lambda given: given.kind,
)
def test_feedback_files(tmp_path, given):
    path = tmp_path / "feedback.jsonl"
    write_lines(path, [given.record()])
    check_errors(path, lambda: read_latest(path))
    for persona in ([], {}, 0, False):
        write_lines(path, [{**given.record(), "persona": persona}])
        with pytest.raises(DataError, match=r":1: persona: input should be"):
            read_latest(path)


def test_queue_files(tmp_path):
    path = tmp_path / "queue.jsonl"
    write_queue(path, [QueuedReplies("i", ["hello"], [JudgedReply("m", "a"), JudgedReply("m", "b")], score=0.5)])
    check_errors(path, lambda: read_queue(path))


@pytest.mark.parametrize(("write", "read", "files"), rows_of_features("TASK_FILES"))
def test_task_files(tmp_path, write, read, files):
    folder = Path(write(tmp_path))
    for path in [folder / f"{name}.json" for name in files]:
        text = json.dumps(json.loads(path.read_text()))  # on one line
        path.write_text(text)
        check_errors(path, lambda: read(str(folder)))
        path.write_text("[1, 2]")
        with pytest.raises(DataError, match=path.stem):
            read(str(folder))
        path.write_text(text)


def test_run_folders(tmp_path):
    run = write_run(tmp_path / "runs" / "a", n_iters=2)
    write_json(run / "result.json", {"iterations": 2, "test": {"before": {"m": 0.5}, "after": {"m": 1.0}}})
    write_json(run / "provenance.json", {"git": {"commit": "abc", "dirty": False}, "packages": {"torch": "1"}})
    write_json(run / "test_split_players.json", {"best": {"m": 1.0}})
    write_json(run / "test_split_references.json", {"m": 1.0})
    write_lines(run / "warnings.jsonl", [{"iteration": 1, "message": "m", "advice": "a", "name": "n"}])
    write_lines(run / "val_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 1.0}}])
    write_json(run / "epoch_2_test_split_predictions.json", [game(i, ("q", "a"), m=1.0) for i in range(2)])
    uses = [
        lambda: write_report(run),
        lambda: print_runs(list_runs(tmp_path / "runs"), console=Console(file=io.StringIO())),
        lambda: read_result(run),
        *(functools.partial(read, run) for read in rows_of_features("READ_RUNS")),
    ]
    for path in sorted(run.glob("*.json*")):
        for use in uses:
            check_errors(
                path,
                use,
                depth=4 if "predictions" in path.name and use is uses[0] else 1,
                others=("[1, 2]", "null", DEEP),
            )


_ENDLESS = """
import itertools, pathlib, sys
from rl4dialog.core.files import append_record
for n in itertools.count():
    append_record(pathlib.Path(sys.argv[1]), {"n": n, "text": "x" * 5000})
"""


def records(path):
    return [json.loads(line) for line in whole_lines(path)]


def test_records_are_appended_in_order_also_behind_a_last_line_without_an_end(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    for text in ("ä\n\u2028", "\ud800", ""):
        append_record(path, {"text": text})
    assert [record["text"] for record in records(path)] == ["ä\n\u2028", "\ud800", ""]
    assert path.read_bytes().count(b"\n") == 3
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    assert records(path) == [{"n": 1}, {"n": 2}]
    append_record(path, {"n": 3})
    assert records(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_cut_last_line_is_not_read_and_makes_way(tmp_path):
    path = tmp_path / "a.jsonl"
    append_record(path, {"n": 1})
    whole = path.read_bytes()
    line = json.dumps({"n": 2, "text": "ä{}"}, ensure_ascii=False).encode()
    for length in range(1, len(line)):
        path.write_bytes(whole + line[:length])
        assert records(path) == [{"n": 1}]
        append_record(path, {"n": 3})
        assert records(path) == [{"n": 1}, {"n": 3}]


def test_killed_writer_leaves_whole_lines_only(tmp_path):
    path = tmp_path / "a.jsonl"
    with subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)]) as writer:
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_size < 50_000) and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.kill()
    n_whole = len(records(path))
    assert n_whole > 0
    append_record(path, {"n": n_whole})
    assert [record["n"] for record in records(path)] == list(range(n_whole + 1))


def test_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    append_record(path, {"n": 1})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"a\.jsonl cannot be written: No space left on device"):
        append_record(path, {"n": 2})
    assert records(path) == [{"n": 1}]


@pytest.mark.parametrize("content", ["my notes", "my notes\nof today", "my notes\n", '[{"n": 1}]', '{"n": 1', "1\n2"])
def test_file_without_a_record_is_refused_and_stays(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(RunFolderError, match=r"a\.jsonl has no record .* left as it is"):
        append_record(path, {"n": 2})
    assert path.read_text() == content


def test_records_replace_a_file_only_once_they_are_written(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write_records(path, [{"n": 1}])

    def full(file, data):
        file.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RunFolderError, match=r"a\.jsonl cannot be written: No space"):
        patch.setattr(Path, "write_bytes", full)
        write_records(path, [{"n": 2}])
    assert records(path) == [{"n": 1}] and list(tmp_path.iterdir()) == [path]
    write_records(path, [{"n": 2}])
    assert records(path) == [{"n": 2}] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ['{"n": 1, "rating": 1}\n', '{\n  "seed": 0\n}\n', "a\n"])
def test_file_of_other_records_is_not_replaced(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(RunFolderError, match=r"a\.jsonl has no record of this kind"):
        write_records(path, [{"n": 2}])
    assert path.read_text() == text


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"aaa")
    (tmp_path / "inner" / "b").write_bytes(b"")
    write_manifest(tmp_path, key="k")
    sync_folder(tmp_path)
    return tmp_path


def test_whole_folder_gives_what_was_written_about_it(folder):
    assert read_manifest(folder)["key"] == "k"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", None, "a is missing"),
        ("a", b"aa", "a has 2 bytes instead of 3"),
        ("a", b"aab", "a was changed"),
        ("inner/b", b"b", "inner/b has 1 bytes instead of 0"),
        ("manifest.json", None, "no readable manifest.json"),
        ("manifest.json", b'{"files": {"a"', "no readable manifest.json"),
        ("manifest.json", b"[]", "no readable manifest.json"),
    ],
)
def test_damage_is_named(folder, name, content, message):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(folder)


def _linked(run, where, target):
    """The run with a link at a place in it, which may be in a folder that is a link itself."""
    path = run / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


_ENTRANCES = {
    "report": lambda run: write_report(run),
    "result": lambda run: read_result(run),
    "config": lambda run: read_run_config(run),
    "training": lambda run: only_writer(run).__enter__(),
    "writing": lambda run: RunFolder(run.parent.parent, run.parent.name, run.name, resume=True),
}


@pytest.mark.parametrize("entrance", _ENTRANCES)
@pytest.mark.parametrize(
    ("where", "target"),
    [
        ("epoch_2_test_split_predictions.json", "kept.txt"),
        ("log.txt", "absent.txt"),
        ("checkpoints", "."),
        ("model/deeper/notes.txt", "../../../../kept.txt"),
        ("taught", "../elsewhere"),
    ],
)
def test_link_that_leaves_a_run_is_refused_everywhere_and_named(tmp_path, entrance, where, target):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "kept.txt").write_text("mine")
    run = write_run(tmp_path / "p" / "run")
    link = _linked(run, where, target if target.startswith("..") else outside / target)
    with pytest.raises(RunFolderError, match=rf"{re.escape(str(link))} leads to .*, out of the folder"):
        _ENTRANCES[entrance](run)
    assert [path.name for path in outside.iterdir()] == ["kept.txt"]
    assert (outside / "kept.txt").read_text() == "mine" and not (run / "report.html").exists()


def test_links_within_a_run_to_the_run_and_of_wandb_are_followed(tmp_path):
    run = write_run(tmp_path / "disk" / "run")
    _linked(run, "best_model", "model")
    _linked(run, "wandb/offline/debug.log", tmp_path / "cache" / "debug.log")
    (tmp_path / "run").symlink_to(run)
    assert write_report(tmp_path / "run").is_file() and (run / "report.html").is_file()
    _linked(run, "wandb/../wandb.log", tmp_path)
    with pytest.raises(RunFolderError, match=r"wandb\.log leads to"):
        write_report(tmp_path / "run")


@pytest.mark.parametrize("kind", [os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(str(path))])
def test_pipes_and_sockets_in_a_run_are_refused_before_they_are_opened(tmp_path, monkeypatch, kind):
    run = write_run(tmp_path / "run")
    monkeypatch.chdir(run)  # names of sockets are short
    kind(Path("critic.json"))
    for use in (write_report, read_result, read_run_config):
        with pytest.raises(RunFolderError, match=r"critic\.json is a (named pipe|socket), which no run writes"):
            use(run)


@pytest.mark.parametrize("where", ["feedback.jsonl", "notes/today/feedback.jsonl"])
def test_nothing_is_written_through_a_link_out_of_a_run_that_another_command_names(tmp_path, where):
    run = write_run(tmp_path / "run")
    target = tmp_path / "profile"
    for path in (_linked(run, where, target), _linked(run, "votes", tmp_path) / "profile"):
        for write in (
            lambda path: append_record(path, {"a": 1}),
            lambda path: write_records(path, [{"a": 1}]),
            lambda path: files.write_json(path, {}),
            lambda path: files.write_csv(path, [["a"]]),
            lambda path: files.ContinuedFile(path, lambda record, n: n, "task {}"),
            check_feedback_file,
        ):
            with pytest.raises(RunFolderError, match="out of the folder"):
                write(path)
    own = _linked(tmp_path, "own.jsonl", target)  # of no run
    append_record(own, {"a": 1})
    assert records(target) == [{"a": 1}] and own.is_symlink()


def test_hard_link_keeps_what_is_replaced_and_gets_what_is_appended(tmp_path):
    run, copy = write_run(tmp_path / "run"), tmp_path / "copy"
    append_record(run / "feedback.jsonl", {"a": 1})
    copy.mkdir()
    for name in ("feedback.jsonl", "config.json"):
        os.link(run / name, copy / name)
    files.write_json(run / "config.json", {"new": 1})
    append_record(run / "feedback.jsonl", {"a": 2})
    assert "new" not in (copy / "config.json").read_text() and len(records(copy / "feedback.jsonl")) == 2


def test_votes_are_recorded_where_files_cannot_be_locked(tmp_path, monkeypatch, caplog):
    def refused(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refused)
    files._warn_without_locks.cache_clear()
    for n in range(3):
        append_record(tmp_path / "votes.jsonl", {"n": n})
    assert [record["n"] for record in records(tmp_path / "votes.jsonl")] == [0, 1, 2]
    assert [record.message for record in caplog.records] == [
        f"files cannot be locked here ({os.strerror(errno.ENOLCK)}), as on some network disks: let only one process "
        "write to a file"
    ]


@pytest.mark.parametrize(
    "cell", ["=1+1", "@sum(a)", "+49", "-2+3|cmd", "\t=1", "\r=1", "\uff1d1", '=HYPERLINK("http://h")']
)
def test_no_text_of_a_table_is_a_formula(tmp_path, cell):
    files.write_csv(tmp_path / "a.csv", [["text", "n"], [cell, -1.5], ["a=b\n=c", 2]])
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["text", "n"], [f"'{cell}", "-1.5"], ["a=b\n=c", "2"]]
