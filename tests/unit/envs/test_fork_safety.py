"""Files and threads that forked workers must not share: refused by name; harmless ones are not."""

from __future__ import annotations

import mmap
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tiny import make_env_kwargs

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.fork_safety import check_can_fork, holdings
from rl4dialog.envs.fork_server import ForkServer
from rl4dialog.envs.vectorize import check_workers, make_vec_env

# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for open files in /proc")

OPENED_AT_IMPORT = {
    "file": ("HELD = open({path!r})", r"the open file \S+words"),
    "socket": ("import socket; HELD = socket.socket()", "the open socket"),
    "pipe": ("import os; HELD = os.pipe()", "the open pipe"),
    "database": ("import sqlite3; HELD = sqlite3.connect({path!r})", r"the open file \S+words"),
    "thread": ("import threading; threading.Thread(target=threading.Event().wait, name='reader').start()", "'reader'"),
    # As a library starts it: nothing that threading knows.
    "native_thread": ("import _thread, time; _thread.start_new_thread(time.sleep, (600,))", "the thread 'python"),
}


class ByReference:
    """An object whose module is imported where it is unpickled, as that of an installed reward."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return __import__, (self.module,)


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
        ForkServer(print, ByReference("holding"))


@needs_proc
def test_allocators_thread_is_no_error() -> None:
    ForkServer(print, ByReference("pandas")).close()


@needs_proc
def test_files_that_processes_can_share_are_no_error(tmp_path: Path) -> None:
    before = holdings()
    path = tmp_path / "vectors"
    path.write_bytes(bytes(4096))
    with open(os.devnull) as null, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert null.fileno()
        check_can_fork(before)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0), pytest.raises(EnvWorkerError, match="vectors"):
        check_can_fork(before)
    check_can_fork(before)


HELD: dict[str, Callable[[Path], Any]] = {
    "text_file": lambda path: path.open("a+", encoding="utf-8"),
    "text_file_to_read": lambda path: path.open(encoding="utf-8"),
    "binary_file": lambda path: path.open("rb"),
    "socket": lambda path: socket.socket(),
    "database": lambda path: sqlite3.connect(path),
    "lock": lambda path: threading.Lock(),
}


class Holds:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, previous: Any, action: int, current: Any, done: bool, meta: dict[str, Any]) -> float:
        return 0.0


@pytest.mark.parametrize("vec_env", ["blocks", "subproc"])
@pytest.mark.parametrize("kind", HELD)
def test_reward_that_holds_what_belongs_to_one_process_is_told_by_name(tmp_path: Path, kind: str, vec_env: str) -> None:
    path = tmp_path / "words"
    path.touch()
    held = HELD[kind](path)
    kwargs = make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Holds(held))])
    try:
        message = r"reward 'mine' cannot be sent to worker processes.*first use, in the worker.*dummy"
        with pytest.raises(EnvWorkerError, match=message):
            make_vec_env(kwargs, 1, vec_env)
        with pytest.raises(EnvWorkerError, match=message):
            check_workers(kwargs, vec_env)
        check_workers(kwargs, "dummy")
    finally:
        if kind != "lock":
            held.close()


class Reads(Holds):
    """Pays the numbers of a file, line by line; the file is opened where the object is unpickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __init__(self, path: str) -> None:
        self.__setstate__({"path": path})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self.file = open(self.path)  # noqa: SIM115 (is read as long as the object lives)

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __call__(self, previous: Any, action: int, current: Any, done: bool, meta: dict[str, Any]) -> float:
        return float(self.file.readline())


def test_file_that_a_reward_opens_belongs_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("".join(f"{n:05}\n" for n in range(1, 10_000)))
    env = make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Reads(str(path)))]), 2, "blocks", 2)
    try:
        env.seed(0)
        env.reset()
        for n in range(4):
            _, rewards, _, _ = env.step(np.array([[5, 0, -1, -1, -1]] * 2))
            assert rewards.tolist() == [2 * n + 1 + 2 * n + 2] * 2
    finally:
        env.close()
