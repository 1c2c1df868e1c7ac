import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl4dialog.core.cache import cache_root, cached_folder, content_hash, find_cached
from rl4dialog.core.errors import RunFolderError


def build_counting(calls):
    def build(folder):
        calls.append(1)
        (folder / "a.txt").write_text("content")

    return build


def test_second_call_is_a_hit_which_can_be_asked_without_building_it():
    calls = []
    first = cached_folder("test", {"k": 1}, build_counting(calls))
    assert cached_folder("test", {"k": 1}, build_counting(calls)) == first
    assert cached_folder("test", {"k": 2}, build_counting(calls)) != first
    assert len(calls) == 2
    assert not find_cached("test", {"asked": 1})
    folder = cached_folder("test", {"asked": 1}, build_counting([]))
    assert find_cached("test", {"asked": 1}) and not find_cached("test", {"asked": 2})
    (folder / "a.txt").write_text("damage")
    assert not find_cached("test", {"asked": 1})


@pytest.mark.parametrize("damage", ["change", "delete", "manifest"])
def test_damaged_folder_is_built_again(damage):
    calls = []
    folder = cached_folder("test", {"damage": damage}, build_counting(calls))
    if damage == "change":
        (folder / "a.txt").write_text("other")
    elif damage == "delete":
        (folder / "a.txt").unlink()
    else:
        (folder / "manifest.json").write_text("{")
    assert (cached_folder("test", {"damage": damage}, build_counting(calls)) / "a.txt").read_text() == "content"
    assert len(calls) == 2


def test_failed_build_leaves_nothing_behind():
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached_folder("test", {"fails": True}, fail)
    calls = []
    assert not (cached_folder("test", {"fails": True}, build_counting(calls)) / "half").exists()


def test_temporary_folder_is_kept_for_the_process_and_then_removed(tmp_path):
    (tmp_path / "file").write_text("")
    program = """
import os, sys
from rl4dialog.core.cache import cached_folder
build = lambda folder: (print("built"), (folder / "a.txt").write_text("content"))
first, second = (cached_folder("test", {"x": 1}, build) for _ in range(2))
if os.fork() == 0:
    sys.exit()
os.wait()
assert first == second and (first / "a.txt").exists()
print(first)
"""
    environment = {**os.environ, "RL4DIALOG_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    built, folder = done.stdout.split()
    assert built == "built" and not Path(folder).exists() and Path(folder).parent == tmp_path


def test_unreadable_cache_falls_back_to_a_temporary_folder(monkeypatch, tmp_path):
    # Root can read every folder, but none of this name.
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / ("x" * 300)))
    assert not find_cached("test", {"x": 3})
    assert (cached_folder("test", {"x": 3}, build_counting([])) / "a.txt").exists()
    assert find_cached("test", {"x": 3})


def test_borders_of_texts_count():
    assert content_hash(["ab", "c"]) != content_hash(["a", "bc"])


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("IoError: No space left on device")]
)
def test_full_cache_falls_back_to_a_temporary_folder(error, caplog):
    folders = []

    def build(folder):
        folders.append(folder)
        (folder / "a.txt").write_text("half" if len(folders) == 1 else "whole")
        if len(folders) == 1:
            raise error

    folder = cached_folder("test", {"full": str(error)}, build)
    assert (folder / "a.txt").read_text() == "whole" and not folders[0].exists()
    assert cache_root() not in folder.parents and "No space left on device" in caplog.text


def test_error_says_what_to_do_if_no_disk_has_space():
    def fail(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunFolderError, match=r"neither the cache folder .* nor .*; set RL4DIALOG_CACHE"):
        cached_folder("test", {"full": "everywhere"}, fail)
