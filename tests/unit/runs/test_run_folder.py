"""The folder of a run: files are whole, one process writes, and a result marks the end."""

import enum
import errno
import gzip
import io
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from rl4dialog.core import files
from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import to_plain
from rl4dialog.runs import run_folder as module
from rl4dialog.runs.run_folder import (
    RunFolder,
    check_not_replaced,
    is_being_written,
    is_complete,
    is_unused,
    only_writer,
    read_result,
    write_result,
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, "project", "run")


def failing_with(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def test_folder_is_base_project_experiment(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs" / "project" / "run").mkdir(parents=True)
    folder = RunFolder("~/runs", "project", "run")
    assert folder.root == tmp_path / "runs" / "project" / "run" and not list(folder.root.iterdir())
    assert folder.path("log.txt") == folder.root / "log.txt"


def test_files_of_somebody_else_are_not_replaced(folder, tmp_path):
    folder.path("log.txt").write_text("x")
    with pytest.raises(RunFolderError, match=r"contains no config\.json"):
        RunFolder(tmp_path, "project", "run")
    assert folder.path("log.txt").is_file()


def test_overwrite_removes_the_runs_files_and_no_others(folder, tmp_path):
    ours = ["config.json", "log.txt", "rollout_info.jsonl", "training_info.jsonl", "val_split_metrics.jsonl"]
    ours += ["epoch_3_test_split_predictions.json", "report.html", "model/model.safetensors", "checkpoints/1/a.json"]
    others = ["notes.md", "plots/mine.png"]
    for name in ours + others:
        folder.path(name).parent.mkdir(parents=True, exist_ok=True)
        folder.path(name).write_text("x")
    folder.path("best_model").symlink_to(folder.path("plots"))  # which overwriting does not follow
    again = RunFolder(tmp_path, "project", "run")
    again.discard_replaced()
    left = {str(path.relative_to(again.root)) for path in again.root.rglob("*") if path.is_file()}
    assert left == set(others)
    assert not again.path("model").exists()


def replace_in_part(earlier, base):
    """Write a run, and begin another one in its place."""
    for name in ("config.json", "result.json", "model/model.safetensors", "notes.md"):
        earlier.path(name).parent.mkdir(exist_ok=True)
        earlier.path(name).write_text("old")
    new = RunFolder(base, "project", "run")
    assert not new.path("result.json").exists()
    new.write_json("config.json", {})
    new.append_jsonl("warnings.jsonl", {})
    return new


def assert_is_the_earlier_run(root):
    found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    found.pop(".lock", None)
    assert found == dict.fromkeys(("config.json", "result.json", "model/model.safetensors", "notes.md"), "old")


def test_start_that_failed_or_was_killed_leaves_the_earlier_run_as_it_was(folder, tmp_path):
    new = replace_in_part(folder, tmp_path)
    with pytest.raises(ValueError, match="no such model"), new.keeping_replaced():
        raise ValueError("no such model")
    assert_is_the_earlier_run(folder.root)
    replace_in_part(folder, tmp_path)
    with only_writer(folder.root):
        assert_is_the_earlier_run(folder.root)
    new = replace_in_part(folder, tmp_path)
    new.discard_replaced()
    with pytest.raises(ValueError, match="later"), new.keeping_replaced():
        raise ValueError("later")
    assert folder.path("config.json").read_text() == "{}\n"
    assert not folder.path("result.json").exists()


@pytest.mark.parametrize("inside", ["", "model", "model/tokenizer.json"])
def test_config_that_reads_the_run_to_be_replaced_is_refused(folder, inside):
    folder.path("model").mkdir()
    path = str(folder.root / inside)
    with pytest.raises(RunFolderError, match=r"metrics\[0\]\.model_name: .* which the new run would replace"):
        check_not_replaced(folder.root, {"metrics": [{"model_name": path}], "seed": 1})
    check_not_replaced(folder.root, {"imports": [str(folder.path("own.py"))], "model_name": "gpt2", "empty": ""})


def test_what_a_kill_leaves_before_the_first_config_is_no_run(tmp_path):
    root = tmp_path / "project" / "run"
    root.mkdir(parents=True)
    (root / ".config.json.tmp").write_text('{"se')
    folder = RunFolder(tmp_path, "project", "run")
    folder.write_json("config.json", {})
    assert [path.name for path in root.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["", "../other", "/etc", "a\nb", "a\0", "b" * 300])
def test_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(RunFolderError, match="--experiment_name"):
        RunFolder(tmp_path, "project", name)


def test_folder_that_cannot_be_made_or_written_names_path_and_cause(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="a file, not a folder"):
        RunFolder(tmp_path, "file", "run")
    failures = ((tempfile, "TemporaryFile", errno.ENOSPC, "No space left"), (Path, "mkdir", errno.EROFS, "Read-only"))
    for owner, name, number, cause in failures:
        monkeypatch.setattr(owner, name, failing_with(number))
        with pytest.raises(RunFolderError, match=f"{tmp_path / 'project' / 'run'} .*{cause}"):
            RunFolder(tmp_path, "project", "run")


def test_write_json_replaces_the_whole_file_unless_the_disk_is_full(folder, monkeypatch):
    folder.write_json("config.json", {"a": list(range(1000))})
    folder.write_json("config.json", {"name": "Zoë"})
    monkeypatch.setattr(module.os, "fsync", failing_with(errno.ENOSPC))
    with pytest.raises(RunFolderError, match=r"config\.json cannot be written: No space left"):
        folder.write_json("config.json", {"version": 2})
    assert json.loads(folder.path("config.json").read_text(encoding="utf-8")) == {"name": "Zoë"}
    assert [path.name for path in folder.root.iterdir()] == ["config.json"]


class NearlyFull(io.FileIO):
    """A file on a disk that takes four bytes more."""

    def write(self, data):
        return super().write(data[:4])


def test_append_jsonl_takes_back_a_line_that_was_cut_short(folder, monkeypatch):
    folder.append_jsonl("log.jsonl", {"text": "a\nb"})
    whole = folder.path("log.jsonl").read_bytes()
    for fail in (lambda path, mode, buffering: NearlyFull(path, "a"), failing_with(errno.ENOSPC)):
        monkeypatch.setattr(module, "open", fail, raising=False)
        with pytest.raises(RunFolderError, match=r"log\.jsonl cannot be written: No space left"):
            folder.append_jsonl("log.jsonl", {"iteration": 2})
        assert folder.path("log.jsonl").read_bytes() == whole == b'{"text": "a\\nb"}\n'


def test_compressed_records_are_cut_back_like_the_others(folder):
    for iteration in (1, 2):
        name, other = module.CONVERSATIONS_FILE, "rollout_info.jsonl"
        folder.append_compressed(name, [{"iteration": iteration, "n": n, "text": "\udc80"} for n in range(3)])
        folder.append_jsonl(other, {"iteration": iteration})
        if iteration == 1:
            sizes, whole = folder.log_sizes(), folder.path(name).read_bytes()
    lines = gzip.decompress(folder.path(name).read_bytes()).splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 1, 1, 2, 2, 2]
    folder.cut_back(sizes, 2)
    assert folder.path(name).read_bytes() == whole and len(folder.read_jsonl(other)) == 1
    folder.cut_back({other: sizes[other]}, 2)
    assert not folder.path(name).exists(), "a log that began after the checkpoint"


def test_a_writer_that_ends_is_waited_for(tmp_path, monkeypatch):
    first = ExitStack()
    first.enter_context(only_writer(tmp_path))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: first.close())
    with only_writer(tmp_path, patience_s=60.0):
        assert is_being_written(tmp_path)


@pytest.mark.parametrize(("names", "expected"), [([], True), ([".lock", ".x.json.tmp"], True), (["x.tmp"], False)])
def test_what_a_start_that_was_killed_leaves_is_no_use_of_a_folder(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()
    assert is_unused(tmp_path) == expected and is_unused(tmp_path / "new")
    (tmp_path / "file").touch()
    assert not is_unused(tmp_path / "file")


def test_folder_has_one_writer_at_a_time(tmp_path):
    root = tmp_path / "project" / "run"
    root.mkdir(parents=True)
    (root / ".lock").touch()  # left behind by a killed process
    with only_writer(root):
        pass
    assert not root.exists(), "nothing was written"
    with only_writer(root):
        with pytest.raises(RunFolderError, match=f"another process is writing to the run in {root}"), only_writer(root):
            pass
        folder = RunFolder(tmp_path, "project", "run")
        folder.write_json("config.json", {})
        RunFolder(tmp_path, "project", "run")
        with pytest.raises(RunFolderError, match="another process"), only_writer(root):
            pass
        folder.path("notes.md").write_text("x")
    assert ".lock" not in {path.name for path in root.iterdir()}
    with only_writer(root):
        pass


def test_file_that_was_removed_while_it_was_locked_is_locked_anew(tmp_path, monkeypatch):
    lock, n_locked = tmp_path / ".lock", 0
    real = files.fcntl.flock

    def after_another_has_ended(handle, how):
        nonlocal n_locked
        n_locked += 1
        if n_locked == 1:
            lock.unlink()
        real(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", after_another_has_ended)
    with only_writer(tmp_path):
        assert n_locked == 2 and lock.exists()


def test_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files.fcntl, "flock", failing_with(errno.ENOLCK))
    with only_writer(tmp_path), only_writer(tmp_path):
        assert "cannot be locked" in caplog.text
    monkeypatch.setattr(files, "fcntl", None)
    with only_writer(tmp_path), only_writer(tmp_path):
        pass


def test_cut_back_takes_the_runs_own_lines_and_no_others(folder):
    ours, others = ["rollout_info.jsonl", "val_split_metrics.jsonl"], ["feedback.jsonl", "replies.jsonl"]
    for name in (*ours, "feedback.jsonl"):
        folder.append_jsonl(name, {"iteration": 1})
    sizes = folder.log_sizes()
    assert list(sizes) == ours
    for name in (*ours, *others, "warnings.jsonl"):
        folder.append_jsonl(name, {"iteration": 2})
    # A checkpoint may count a file that is not the run's, and that has become shorter since.
    folder.cut_back({**sizes, "feedback.jsonl": 1000}, 1)
    found = {path.name: len(folder.read_jsonl(path.name)) for path in folder.root.iterdir()}
    assert found == {"rollout_info.jsonl": 1, "val_split_metrics.jsonl": 1, "feedback.jsonl": 2, "replies.jsonl": 1}


def test_replacing_folder_appears_whole_or_not_at_all(folder):
    for name in "ab":
        with folder.replacing_folder("model") as temporary:
            (temporary / name).write_text("1")
            assert not (folder.path("model") / name).exists()
    for error in (KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)), folder.replacing_folder("model") as temporary:
            (temporary / "c").write_text("2")
            raise error
        assert [path.name for path in folder.path("model").iterdir()] == ["b"]
        assert [path.name for path in folder.root.iterdir()] == ["model"]


def test_what_is_put_in_place_stays_there_after_a_power_cut(folder, monkeypatch):
    """The names that a folder has on the disk are those at its last fsync."""
    real, on_disk = os.fsync, dict[Path, set[str]]()

    def fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            on_disk[path] = {entry.name for entry in path.iterdir()}
        real(handle)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system has no /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    folder.write_json("config.json", {})
    assert on_disk[folder.root] == {"config.json"}
    folder.append_jsonl("rollout_info.jsonl", {})
    folder.log_sizes()
    assert on_disk[folder.root] == {"config.json", "rollout_info.jsonl"}
    with folder.replacing_folder("checkpoints/iteration_000001"):
        pass
    assert on_disk[folder.path("checkpoints")] == {"iteration_000001"}
    assert "checkpoints" in on_disk[folder.root]


def test_replacing_folder_names_a_full_disk_that_safetensors_reports(folder):
    expected = pytest.raises(RunFolderError, match="model cannot be written: No space left")
    with expected, folder.replacing_folder("model"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


Kind = enum.StrEnum("Kind", ["ADAPTIVE"])


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ([np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(2.5)], [0.5, 3, True, 2.5]),
        ([torch.ones(2, dtype=torch.int64), np.zeros((1, 2))], [[1, 1], [[0.0, 0.0]]]),
        ({3: (1, "x"), "set": {2, 1}, "flag": False}, {"3": [1, "x"], "set": [1, 2], "flag": False}),
        ([Path("a/b"), Kind.ADAPTIVE, None], ["a/b", "adaptive", None]),
        ([float("nan"), np.float64("inf"), torch.tensor(float("-inf")), 1e-300], [None, None, None, 1e-300]),
    ],
)
def test_objects_become_numbers_lists_and_texts(given, plain):
    assert to_plain(given) == plain == json.loads(json.dumps(to_plain(given), allow_nan=False))


def test_result_is_read_back_and_marks_a_complete_run(folder):
    with pytest.raises(RunFolderError, match=r"contains no config\.json; pass a run folder"):
        read_result(folder.root)
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        read_result(folder.root / "nowhere")
    folder.write_json("config.json", {})
    damaged = (
        '{"iterations": "7"}',
        '{"iterations": 7, "test": {}}',
        '{"iterations": 7, "test": {"before": [], "after": {}}}',
    )
    for text in (None, "", "[1]", "{}", *damaged):
        if text is not None:
            folder.path("result.json").write_text(text)
        assert not is_complete(folder.root)
        with pytest.raises(RunFolderError, match=r"is not complete: its result\.json"):
            read_result(folder.root)
    write_result(folder, 7, {"test": {"a": 0.5}}, {"test": {"a": float("nan")}})
    assert is_complete(folder.root)
    assert read_result(folder.root) == {"iterations": 7, "test": {"before": {"a": 0.5}, "after": {"a": None}}}
