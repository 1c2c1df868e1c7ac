"""Workers of stable-baselines3's SubprocVecEnv that die, hang or fail."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from test_vectorize import make_kwargs

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.core.types import RewardPart
from rl4dialog.envs.sb3_workers import close, deaths_told
from rl4dialog.envs.vectorize import make_utterance_env, make_vec_env

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sys.modules["test_vectorize"])


def deadly(previous: Any, action: int, current: Any, done: bool, meta: dict[str, Any]) -> float:
    if action == 5:
        os._exit(7)
    if action == 6:
        time.sleep(600)
    return 1.0


@pytest.fixture
def env() -> Iterator[SubprocVecEnv]:
    built = make_vec_env(make_kwargs(reward_parts=[RewardPart("deadly", 1.0, deadly)]), 2, "subproc", timeout_s=0.3)
    assert type(built) is SubprocVecEnv
    built.seed(0)
    built.reset()
    yield built
    close(built)
    assert not any(process.is_alive() for process in built.processes)


def test_reward_that_hangs_is_told_and_worker_that_dies_is_told_with_its_exit_code(env: SubprocVecEnv) -> None:
    _, _, dones, infos = env.step(np.array([[6, 0, -1, -1, -1], [4, 0, -1, -1, -1]]))
    assert dones.tolist() == [True, True]
    assert "reward 'deadly' had not returned" in infos[0]["error"] and "error" not in infos[1]
    with pytest.raises(EnvWorkerError, match=r"process \d+ with environment 1, exit code 7\."), deaths_told(env):
        env.step(np.array([[4, 0, -1, -1, -1], [5, 0, -1, -1, -1]]))
    close(env)
    close(env)


def test_other_errors_are_left_as_they_are(env: SubprocVecEnv) -> None:
    with pytest.raises(FileNotFoundError), deaths_told(DummyVecEnv([lambda: make_utterance_env(make_kwargs())])):
        open("/nowhere/at/all")  # noqa: SIM115 (does not open)
    env.step_async(np.array([[6, 0, -1, -1, -1]] * 2))  # and is closed in the middle of a step


def test_environment_that_cannot_be_built_is_told() -> None:
    with pytest.raises(EnvWorkerError, match="died while its environment was built"):
        make_vec_env(make_kwargs(max_turns=2), 1, "subproc")
