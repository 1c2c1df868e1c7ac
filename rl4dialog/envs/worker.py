"""The worker side of vectorized environments: builds environments and steps a block of them.

It imports neither torch nor stable-baselines3, so a worker loads only what its environments need.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from rl4dialog.core.errors import RewardError
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView

EnvFn = Callable[[], gym.Env]


def make_utterance_env(env_kwargs: dict[str, Any], timeout_s: float | None = None) -> UtteranceView:
    """Build an environment in the process where it runs; arguments are those of the two classes.

    Rewards, partners and tools, which can have state, are copied for each environment; all share tokenizer and samples.
    """
    end_of_turn = env_kwargs["end_of_turn"]
    shared = {id(value): value for value in (end_of_turn, end_of_turn.tokenizer, env_kwargs["samples"])}
    parts = []
    for part in env_kwargs.get("reward_parts", ()):
        try:
            parts.append(dataclasses.replace(part, function=copy.deepcopy(part.function, shared)))
        except Exception as error:
            raise RewardError(
                f"reward {part.name!r} cannot be copied for each environment: {type(error).__name__}: {error}. Define "
                f"__deepcopy__ in its class and return self to share it between environments."
            ) from error
    own = {name: copy.deepcopy(env_kwargs.get(name), shared) for name in ("partner", "outside_partner", "toolbox")}
    env = TextGenEnv(**{**env_kwargs, "reward_parts": parts, **own})
    return UtteranceView(env, timeout_s)


def dumps(value: Any) -> bytes:
    """Pickled object, with classes of user files, but without open files."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, value: Any) -> Any:
        # cloudpickle would read the file and send its contents.
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdin, sys.stdout, sys.stderr):
            raise pickle.PicklingError(f"cannot pickle the open file {value.name!r}")
        return super().reducer_override(value)


# -- in the worker process --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """An exception in a form that can be sent to the main process; ``cause`` has its traceback."""

    message: str
    cause: Exception
    is_missing_attribute: bool = False


def obey_main_process(environment: Mapping[str, str]) -> None:
    """Take the main process's environment variables, and let only it end this process, which also ends with it.

    A fork server has the variables of the time at which it was started. Ctrl-C and a scheduler's signals reach the
    whole process group, and the main process saves the run before it ends.
    """
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def end_with_main() -> None:  # even in the middle of a reward that never returns
        if (main := multiprocessing.parent_process()) is not None:
            main.join()
            os._exit(1)

    threading.Thread(target=end_with_main, daemon=True).start()


class _Copied(io.TextIOBase):
    """Standard error, of which the main process gets a copy."""

    def __init__(self, path: Path) -> None:
        self._stderr, self._copy = sys.stderr, path.open("w", encoding="utf-8")

    def write(self, text: str) -> int:
        print(text, end="", file=self._copy, flush=True)
        return self._stderr.write(text)

    def flush(self) -> None:
        self._stderr.flush()


class _AnyPickler(ForkingPickler):
    """Sends functions and classes of user files, too."""

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
        try:
            return super().dumps(obj, protocol)
        except (pickle.PicklingError, AttributeError, TypeError):
            return cloudpickle.dumps(obj)


def start(env_fns: bytes, at: int, environment: Mapping[str, str], report: Path) -> gym.Env:
    """Build one of several environments in a process that stable-baselines3 has started for it."""
    sys.stderr = _Copied(report)
    obey_main_process(environment)
    np.random.seed()
    multiprocessing.connection._ForkingPickler = _AnyPickler  # type: ignore[attr-defined]
    return pickle.loads(env_fns)[at]()  # type: ignore[no-any-return]


def run_block(connection: Connection, env_fns: bytes, block: range, environment: Mapping[str, str]) -> None:
    """Answer requests to a block of environments until it is to close, or the main process ends."""
    obey_main_process(environment)
    # Unlike Python's random generator, numpy's is not reseeded by a fork, such as that of a forkserver.
    np.random.seed()
    worker = _EnvBlock(env_fns, block)
    with contextlib.suppress(EOFError, OSError):
        while (requests := connection.recv()) != ("close", None):
            connection.send_bytes(worker.answer(requests))
    for env in worker.envs:
        env.close()


class _EnvBlock:
    """Environments that are stepped one after the other, and built with the first requests."""

    def __init__(self, env_fns: bytes, block: range) -> None:
        self.envs: list[gym.Env] = []
        self._env_fns, self._block = env_fns, block
        self._at = 0  # the current environment, for error messages
        self._partners_wait = False
        self._reset_infos: list[Any] = []

    def answer(self, requests: Sequence[bytes]) -> bytes:
        """Pickled answers to pickled ``(environment, command, data)`` with one command, or a pickled `Failure`."""
        command, self._at = "", 0
        try:
            if not self.envs:
                self._build()
            # Unpickled one by one, so that environments do not share objects.
            envs, commands, data = zip(*map(pickle.loads, requests), strict=True)
            command = commands[0]
            answers: Any
            if command == "step":  # steps and resets always concern the whole block
                answers = stacked(self.step(data))
            elif command == "reset":
                answers = self.reset(data)
            else:
                answers = []
                for at, value in zip(envs, data, strict=True):
                    self._at = at
                    answers.append(_CALLS[command](self.envs[at], value))
            try:
                return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                # Three times as slow, but supports functions and classes of user files.
                return cloudpickle.dumps(answers)
        except Exception as error:
            message = f"environment {self._block[self._at]} failed in its worker (process {os.getpid()}): "
            message += f"{type(error).__name__}: {error}"
            cause = RemoteTraceback("".join(traceback.format_exception(error)))
            is_missing = command in ("get_attr", "env_method") and isinstance(error, AttributeError)
            return pickle.dumps(Failure(message, cause, is_missing))

    def _build(self) -> None:
        env_fns = pickle.loads(self._env_fns)
        envs = []
        for at, env in enumerate(self._block):
            self._at = at
            envs.append(env_fns[env]())
        self.envs, self._env_fns = envs, b""
        self._partners_wait = partner_waits(envs[0])
        self._reset_infos = [{} for _ in envs]

    def _each(self) -> Iterator[tuple[int, gym.Env]]:
        """The environments by number, of which the current one is remembered."""
        for at, env in enumerate(self.envs):
            self._at = at
            yield at, env

    def reset(self, starts: Sequence[tuple[int | None, dict[str, Any]]]) -> list[Any]:
        """Start an episode in all environments, given seed and options; returns observation and info of each."""
        arguments: list[dict[str, Any]] = [
            {"seed": seed, **({"options": options} if options else {})} for seed, options in starts
        ]
        if self._partners_wait:
            for at, env in self._each():
                env.get_wrapper_attr("expect_reset")(**arguments[at])
        results = [env.reset(**arguments[at]) for at, env in self._each()]
        self._reset_infos = [info for _, info in results]
        return results

    def step(self, actions: Sequence[Any]) -> list[Any]:
        """Step all environments, and reset those whose episode ended.

        Returns observation, reward, done, info, and info of the latest reset, for each environment.
        """
        # All requests to partners that wait are under way before the first environment waits for an answer.
        if self._partners_wait:
            for at, env in self._each():
                env.get_wrapper_attr("expect_step")(actions[at])
        steps = []
        for at, env in self._each():
            observation, reward, terminated, truncated, info = env.step(actions[at])
            done = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            steps.append((observation, reward, done, info))
            if self._partners_wait and done:
                env.get_wrapper_attr("expect_reset")()
        results = []
        for at, env in self._each():
            observation, reward, done, info = steps[at]
            if done:
                info["terminal_observation"] = observation
                observation, self._reset_infos[at] = env.reset()
            results.append((observation, reward, done, info, self._reset_infos[at]))
        return results


def stacked(steps: list[Any]) -> tuple[Any, list[Any]]:
    """Observations of steps as one array per key, as pickling one each takes longer than all else; and the rest."""
    observations: Any = [step[0] for step in steps]
    observations += [info.pop("terminal_observation") for _, _, done, info, _ in steps if done]
    if isinstance(observations[0], dict):
        observations = {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return observations, [others for _, *others in steps]


def unstacked(observations: Any, others: list[Any]) -> list[Any]:
    """The steps of `stacked`."""
    if isinstance(observations, dict):
        n = len(others) + sum(done for _, done, _, _ in others)
        observations = [{key: array[i, ...] for key, array in observations.items()} for i in range(n)]
    each = iter(observations)
    steps = [(next(each), *other) for other in others]
    for _, _, done, info, _ in steps:
        if done:
            info["terminal_observation"] = next(each)
    return steps


def partner_waits(env: gym.Env) -> bool:
    """Whether an environment wants to know its coming steps and resets, as `UtteranceView` describes."""
    return bool(env.has_wrapper_attr("partner_waits") and env.get_wrapper_attr("partner_waits"))


def _is_wrapped(env: gym.Env, wrapper: tuple[str, str]) -> bool:
    """Whether an environment has a wrapper of a class, given by name because its module may import torch."""
    while isinstance(env, gym.Wrapper):
        if any((cls.__module__, cls.__qualname__) == wrapper for cls in type(env).__mro__):
            return True
        env = env.env
    return False


_CALLS: Mapping[str, Callable[[gym.Env, Any], Any]] = {
    "get_spaces": lambda env, _: (env.observation_space, env.action_space),
    "env_method": lambda env, call: env.get_wrapper_attr(call[0])(*call[1], **call[2]),
    "get_attr": lambda env, name: env.get_wrapper_attr(name),
    "has_attr": lambda env, name: env.has_wrapper_attr(name),
    "set_attr": lambda env, item: setattr(env, *item),
    "render": lambda env, _: env.render(),
    "is_wrapped": _is_wrapped,
}
