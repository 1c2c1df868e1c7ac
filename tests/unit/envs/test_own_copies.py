"""Objects that workers build for themselves: refused with a reason where they hold what belongs to one process."""

from __future__ import annotations

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
from rl4dialog.core.types import RewardPart
from rl4dialog.envs.vectorize import make_vec_env

# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

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


@pytest.mark.parametrize("kind", HELD)
def test_reward_that_holds_what_belongs_to_one_process_is_told_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "words"
    path.touch()
    held = HELD[kind](path)
    try:
        with pytest.raises(
            EnvWorkerError, match=r"reward 'mine' cannot be sent to worker processes.*first use, in the worker.*dummy"
        ):
            make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Holds(held))]), 1, "blocks")
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
