from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from tiny import make_samples, make_tokenizer

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import PARTNER, Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.envs.outside_partner import OutsidePartner
from rl4dialog.envs.utterance_view import LEAVES_ACTION
from rl4dialog.envs.vectorize import make_utterance_env
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.text.end_of_turn import EndOfTurn

T = 4
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


class Talker(gym.Env):
    """Its steps may end the process, or have more to say than fits into a pipe."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.n = 0
        return self.n, {}

    def step(self, action: int) -> Any:
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.n += 1
        return self.n, 0.0, False, False, {"long": bytes(20_000_000 if action == 2 else 0)}

    def __init__(self, is_restored: bool = True) -> None:
        self._is_restored = is_restored

    def state_dict(self) -> int:
        return self.n

    def load_state_dict(self, state: int) -> None:
        if not self._is_restored:
            raise KeyError("n")
        self.n = state


def count_characters(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
    return 0.1 * action + done * len(current.context_text)


def conversation_fns(n_envs: int, **overrides: Any) -> list[Callable[[], gym.Env]]:
    tokenizer = make_tokenizer()
    kwargs = {
        "end_of_turn": EndOfTurn(tokenizer, [0]),
        "samples": make_samples(),
        "reward_parts": [RewardPart("words", 0.7, count_characters)],
        "max_prompt_length": 12,
        "max_episode_length": T,
        "vocab_size": len(tokenizer),
        **overrides,
    }
    return [functools.partial(make_utterance_env, kwargs)] * n_envs


@pytest.fixture
def open_env() -> Iterator[Callable[..., BlockVecEnv]]:
    opened: list[BlockVecEnv] = []

    def build(*args: Any) -> BlockVecEnv:
        opened.append(BlockVecEnv(*args))
        return opened[-1]

    yield build
    for env in opened:
        env.close()


def kill(env: BlockVecEnv, worker: int) -> None:
    os.kill(env.pids[worker], signal.SIGKILL)


def utterances(rng: np.random.Generator, n_envs: int) -> np.ndarray:
    actions = np.full((n_envs, T), -1)
    for row in actions:
        n = rng.integers(1, T + 1)
        row[:n] = [*rng.integers(3, 20, n - 1), 0]
    return actions


def test_ten_deaths_between_and_in_steps_change_nothing(open_env: Any, caplog: pytest.LogCaptureFixture) -> None:
    fns = conversation_fns(5, partner=ScriptedPartner(["w1 w2", "w3"]), max_turns=3)
    env, other = open_env(fns, 2, 10), open_env(fns, 1)
    for vec_env in (env, other):
        vec_env.seed(3)
    np.testing.assert_equal(env.reset(), other.reset())
    rng = np.random.default_rng(0)
    with caplog.at_level(logging.WARNING):
        for step in range(20):
            actions = utterances(rng, 5)
            if step % 4 == 1:
                kill(env, step % 2)
            env.step_async(actions)
            if step % 4 == 2:
                kill(env, 0)
            found = env.step_wait()
            np.testing.assert_equal(found, other.step(actions))
            np.testing.assert_equal(env.reset_infos, other.reset_infos)
    assert env.n_restarts == 10
    assert "environment worker 1 " in caplog.text and "died with exit code -9" in caplog.text
    assert "(restart 10 of 10)" in caplog.text
    kill(env, 1)
    with pytest.raises(
        EnvWorkerError, match=r"worker 1 .* 10 workers were already replaced \(limits: env\.max_restarts"
    ):
        env.step(utterances(rng, 5))


@pytest.mark.parametrize("first", ["sample", "partner"])
def test_deaths_between_the_utterances_of_an_outside_partner_change_nothing(open_env: Any, first: str) -> None:
    tokenizer = make_tokenizer(marker="<EOU>")
    eou, end = DialogueFormat("eou", None, in_conversation=True), EndOfTurn(tokenizer, [0], "<EOU>")
    outside = OutsidePartner(eou, end, len(tokenizer), 12, T + 2)
    samples = [Sample(i, eou.prompt([f"w{i}"]), ["w1"], {"history": [f"w{i}"]}) for i in range(7)]
    kwargs: dict[str, Any] = {"end_of_turn": end, "samples": samples, "vocab_size": len(tokenizer), "max_turns": 3}
    fns = conversation_fns(5, **kwargs, outside_partner=outside, first_speaker=first, max_prompt_length=16)
    env, other = open_env(fns, 2, 10), open_env(fns, 1)
    for vec_env in (env, other):
        vec_env.seed(3)
    observations = env.reset()
    np.testing.assert_equal(observations, other.reset())
    rng, speakers = np.random.default_rng(0), []
    for step in range(16):
        actions = np.full((5, T + 2), -1)
        actions[:, :T] = utterances(rng, 5)
        leaving = (observations["speaker"] == PARTNER) & (rng.random(5) < 0.2)
        actions[leaving] = [LEAVES_ACTION, *[-1] * (T + 1)]
        speakers += observations["speaker"].tolist()
        if step % 4 == 1:
            kill(env, step // 4 % 2)
        env.step_async(actions)
        if step % 4 == 2:
            kill(env, 0)
        found = env.step_wait()
        np.testing.assert_equal(found, other.step(actions))
        np.testing.assert_equal(env.reset_infos, other.reset_infos)
        observations = found[0]
    assert env.n_restarts == 8 and 20 < sum(speakers) < 60, "both have spoken"


def test_a_new_worker_begins_from_the_last_snapshot(open_env: Any) -> None:
    env, other = open_env(conversation_fns(3), 2, 10), open_env(conversation_fns(3), 1)
    for vec_env in (env, other):
        vec_env.seed(5)
        vec_env.reset()
    env.set_attr("mark", "set", [1, 2])
    rng = np.random.default_rng(0)
    for step in range(12):
        if step % 3 == 0:
            if step == 3:
                kill(env, 0)  # while it is asked for its state
            env.snapshot()
            assert [len(worker.requests) for worker in env._workers] == [1, 1]
        if step in (4, 5, 9):
            kill(env, step % 2)
        actions = utterances(rng, 3)
        np.testing.assert_equal(env.step(actions), other.step(actions))
        np.testing.assert_equal(env.reset_infos, other.reset_infos)
    assert env.n_restarts == 4
    assert env.get_attr("mark", [1, 2]) == ["set", "set"]
    with pytest.raises(AttributeError, match="mark"):
        env.get_attr("mark", 0)


def test_snapshot_in_the_middle_of_an_episode_is_refused(open_env: Any) -> None:
    env = open_env(conversation_fns(1, partner=ScriptedPartner(["w1"]), max_turns=2), 1, 1)
    env.reset()
    env.step(utterances(np.random.default_rng(0), 1))
    with pytest.raises(EnvWorkerError, match="only at the start of an episode"):
        env.snapshot()


def test_worker_that_cannot_be_brought_back_gives_no_wrong_answers(open_env: Any) -> None:
    env = open_env([functools.partial(Talker, is_restored=False)], 1, 10)
    env.reset()
    kill(env, 0)
    with pytest.raises(EnvWorkerError, match=r"environment 0 failed in worker 0 .*: KeyError: 'n'"):
        env.step(np.array([0]))


@pytest.mark.parametrize("max_restarts", [2, 100])
def test_step_that_always_kills_ends_in_an_error(open_env: Any, max_restarts: int) -> None:
    env = open_env([Talker] * 2, 2, max_restarts)
    env.reset()
    with pytest.raises(EnvWorkerError, match="environment worker died: worker 0"):
        env.step(np.array([1, 0]))
    assert env.n_restarts == min(max_restarts, 3)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_worker_that_dies_in_the_middle_of_a_reply(open_env: Any, max_restarts: int) -> None:
    env = open_env([Talker], 1, max_restarts)
    env.reset()
    env.step_async(np.array([2]))
    time.sleep(0.5)  # the pipe is full
    kill(env, 0)
    if max_restarts:
        observations, *_, infos = env.step_wait()
        assert observations == [1] and len(infos[0]["long"]) == 20_000_000
    else:
        with pytest.raises(EnvWorkerError, match=r"exit code -9.*env\.on_worker_death: restart"):
            env.step_wait()


def test_no_worker_is_replaced_where_the_process_that_forks_them_has_died(open_env: Any) -> None:
    env = open_env([Talker] * 2, 2, 5)
    env.reset()
    env._server._process.kill()
    assert env.step(np.zeros(2, dtype=int))[0].tolist() == [1, 1]
    kill(env, 0)
    with pytest.raises(EnvWorkerError, match=r"process that starts the environment workers died \(exit code -9\)"):
        env.step(np.zeros(2, dtype=int))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_leave_it_to_the_main_process_to_heed_signals(open_env: Any, number: int) -> None:
    env = open_env([Talker] * 2, 2)
    env.reset()
    pids = [env._server._process.pid, *env.pids]
    for pid in pids:
        os.kill(pid, number)
    assert env.step(np.zeros(2, dtype=int))[0].tolist() == [1, 1]
    env.close()
    assert env._server._process.returncode == 0


def test_unseeded_episode_continues_in_a_new_worker(open_env: Any) -> None:
    """Its seed is unknown, so it can only continue from the state after the reset."""
    env = open_env(conversation_fns(2, samples=make_samples(500)), 1, 1)
    prompts = env.reset()["prompt_ids"]
    kill(env, 0)
    wait = np.full((2, T), -1)
    np.testing.assert_equal(env.step(wait)[0]["prompt_ids"], prompts)
    assert env.n_restarts == 1


def test_restart_is_refused_where_environments_have_no_state(open_env: Any) -> None:
    with pytest.raises(EnvWorkerError, match=r"max_restarts=1.* need the methods state_dict\(\) and load_state_dict"):
        open_env([functools.partial(gym.make, "CartPole-v1")], 1, 1)
