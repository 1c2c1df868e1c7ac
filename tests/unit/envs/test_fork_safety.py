"""What a process must not hold when it forks is told by name, and what does no harm is not."""

from __future__ import annotations

import functools
import mmap
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.fork_safety import Holdings, check_can_fork
from rl4dialog.envs.fork_server import _ENVIRONMENT, ForkServer

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for open files in /proc")

OPENED_AT_IMPORT = {
    "file": ("HELD = open({path!r})", r"the open file \S+words"),
    "socket": ("import socket; HELD = socket.socket()", "an open socket"),
    "pipe": ("import os; HELD = os.pipe()", "an open pipe"),
    "database": ("import sqlite3; HELD = sqlite3.connect({path!r})", r"the open file \S+words"),
    "thread": ("import threading; threading.Thread(target=threading.Event().wait, name='reader').start()", "'reader'"),
}


@needs_proc
@pytest.mark.parametrize("kind", OPENED_AT_IMPORT)
def test_what_a_module_opens_when_workers_load_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source, message = OPENED_AT_IMPORT[kind]
    (tmp_path / "words").touch()
    (tmp_path / "holding.py").write_text(source.format(path=str(tmp_path / "words")))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvWorkerError, match=rf"would share .*{message}.*create them on first use, in the worker"):
        ForkServer(ByReference("holding"), 1)


class ByReference:
    """Work whose module is imported where it is unpickled, as that of an installed reward."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return __import__, (self.module,)


@pytest.fixture
def before() -> Iterator[Holdings]:
    yield Holdings.now()


@needs_proc
def test_files_that_processes_can_share_are_no_error(tmp_path: Path, before: Holdings) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(bytes(4096))
    with open(os.devnull) as null, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert null.fileno()
        check_can_fork(before)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0), pytest.raises(EnvWorkerError, match="vectors"):
        check_can_fork(before)
    check_can_fork(before)


@needs_proc
def test_everything_that_is_held_is_told_at_once(tmp_path: Path, before: Holdings) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="watcher")
    thread.start()
    with socket.socket(), sqlite3.connect(tmp_path / "cache.db") as database:
        with pytest.raises(EnvWorkerError, match=r"'watcher'.*cache\.db") as caught:
            check_can_fork(before)
        assert "an open socket" in str(caught.value)
    database.close()
    ended.set()
    check_can_fork(before)
    thread.join()


@needs_proc
def test_native_thread_is_told_but_for_an_allocators() -> None:
    program = """
from rl4dialog.envs.fork_safety import Holdings, check_can_fork
before = Holdings.now()
import {module}
{then}
check_can_fork(before)
"""
    environment = {**os.environ, **_ENVIRONMENT}
    run = functools.partial(subprocess.run, capture_output=True, env=environment)
    quiet = run([sys.executable, "-c", program.format(module="pandas", then="")])
    assert quiet.returncode == 0, quiet.stderr.decode()
    # As a library starts it: nothing that threading knows.
    then = "_thread.start_new_thread(time.sleep, (600,))"
    pool = run([sys.executable, "-c", program.format(module="_thread, time", then=then)])
    assert b"a library's thread" in pool.stderr
