import errno
import threading
from concurrent.futures import ThreadPoolExecutor

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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_two_that_build_at_once_get_the_same_folder(is_damaged):
    for n in range(20):
        if is_damaged:
            (cached_folder("test", {"at once": n}, build_counting([])) / "a.txt").unlink()
        barrier = threading.Barrier(2)

        def build(folder, barrier=barrier):
            (folder / "a.txt").write_text("content")
            barrier.wait(timeout=60)

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(cached_folder, "test", {"at once": n}, build) for _ in range(2)]
        (folder,) = {each.result() for each in both}
        assert find_cached("test", {"at once": n}) == folder
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_borders_of_texts_count():
    assert content_hash(["ab", "c"]) != content_hash(["a", "bc"])


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left on device")]
)
def test_full_cache_is_an_error_that_names_the_setting(error):
    def build(folder):
        (folder / "a.txt").write_text("half")
        raise error

    with pytest.raises(RunFolderError, match=f"{cache_root()} cannot be written: .*No space left.*set RL4DIALOG_CACHE"):
        cached_folder("test", {"full": str(error)}, build)
    assert not find_cached("test", {"full": str(error)})


def test_cache_that_cannot_be_made_is_an_error_that_names_the_setting(monkeypatch, tmp_path):
    # Root can write every folder, but none of this name.
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / ("x" * 300)))
    assert not find_cached("test", {"x": 3})
    with pytest.raises(RunFolderError, match="cannot be written: File name too long; set RL4DIALOG_CACHE"):
        cached_folder("test", {"x": 3}, build_counting([]))
