"""Workers of stable-baselines3's SubprocVecEnv that die, hang or fail."""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from tiny import make_env_kwargs

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.sb3_workers import close, worker_death_as_error
from rl4dialog.envs.vectorize import make_utterance_env, make_vec_env

# As a file of a user's.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
GOOD, HANGS, DIES = ([token, 0, -1, -1, -1] for token in (4, 6, 5))


def deadly(previous: Any, action: int, current: Any, done: bool, meta: dict[str, Any]) -> float:
    if action == DIES[0]:
        os._exit(7)
    if action == HANGS[0]:
        time.sleep(600)
    return 1.0


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are up at once: by default each imports torch."""
    quick = functools.partial(SubprocVecEnv, start_method="fork")
    monkeypatch.setattr("stable_baselines3.common.vec_env.SubprocVecEnv", quick)


def make(**overrides: Any) -> SubprocVecEnv:
    env = make_vec_env(make_env_kwargs(**overrides), 2, "subproc", timeout_s=0.3)
    assert type(env) is SubprocVecEnv
    env.seed(0)
    env.reset()
    return env


def is_any_alive(env: SubprocVecEnv) -> bool:
    return any(process.is_alive() for process in env.processes)


@pytest.mark.usefixtures("forked")
def test_reward_that_hangs_is_told_and_worker_that_dies_is_told_with_its_exit_code() -> None:
    env = make(reward_parts=[RewardPart("deadly", 1.0, deadly)])
    _, _, dones, infos = env.step(np.array([HANGS, GOOD]))
    assert dones.tolist() == [True, True]
    assert "reward 'deadly' had not returned" in infos[0]["error"] and "error" not in infos[1]
    with (
        pytest.raises(EnvWorkerError, match=r"process \d+ with environment 0, exit code 7\."),
        worker_death_as_error(env),
    ):
        env.step(np.array([DIES, GOOD]))  # the first: forked after it, the second does not hold its connection
    for _ in range(2):
        close(env)
    assert not is_any_alive(env)


@pytest.mark.usefixtures("forked")
def test_environments_are_closed_in_the_middle_of_a_step_and_after_it() -> None:
    for is_in_a_step in (True, False):
        env = make(reward_parts=[RewardPart("deadly", 1.0, deadly)])
        env.step_async(np.array([HANGS, GOOD]))
        if not is_in_a_step:
            env.step_wait()
        close(env)
        assert not is_any_alive(env)


def test_other_errors_are_left_as_they_are() -> None:
    with (
        pytest.raises(FileNotFoundError),
        worker_death_as_error(DummyVecEnv([lambda: make_utterance_env(make_env_kwargs())])),
    ):
        open("/nowhere/at/all")  # noqa: SIM115 (does not open)


@pytest.mark.usefixtures("forked")
def test_environment_that_cannot_be_built_is_told() -> None:
    with pytest.raises(EnvWorkerError, match="died while its environment was built"):
        make(max_turns=2)
