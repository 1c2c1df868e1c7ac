"""Several environments at once, in this process or in workers, behind stable-baselines3's ``VecEnv``."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import sys
import tempfile
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import joblib
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs import worker as in_worker
from rl4dialog.envs.text_generation import SharedSamples

# Time limit of a step in addition to its rewards, for busy machines.
_STEP_GRACE_S = 30.0
# Time between the end of a connection, or the request to end, and the end of a process.
_END_GRACE_S = 5.0
# There is one worker per core, so each has one thread.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
# Modules that the forkserver loads once for all workers, which share their memory.
_PRELOADED = ["rl4dialog.envs.worker", "transformers.tokenization_utils_tokenizers"]
_PRELOADED_BY_SB3 = [*_PRELOADED, "stable_baselines3.common.vec_env.subproc_vec_env"]
_ADVICE = (
    "Open files, sockets, databases, locks and threads belong to one process: create them on first use, in the worker, "
    "not in a constructor. env.vec_env: dummy uses no workers"
)


# -- which environments run where -------------------------------------------------------------------------------------


def make_vec_env(
    env_kwargs: dict[str, Any],
    n_envs: int,
    vec_env: str | None = None,
    n_workers: int | None = None,
    timeout_s: float | None = None,
    once_among: tuple[int, int] | None = None,
) -> VecEnv:
    """Vectorize :class:`UtteranceView`.

    Args:
        env_kwargs: Arguments of :class:`TextGenEnv`.
        n_envs: Number of environments.
        vec_env: ``blocks`` for several environments per worker process; ``subproc`` for one process per environment;
            ``dummy`` for all in this process. By default ``blocks`` if rewards or partner run there, else ``dummy``.
        n_workers: Number of workers for ``blocks``; by default one per core.
        timeout_s: Time limit of the rewards of a reply.
        once_among: For samples that occur once: the number of the first environment, and that in all processes.
    """
    vec_env = check_workers(env_kwargs, vec_env)
    samples = env_kwargs["samples"]
    env_kwargs = {**env_kwargs, "samples": samples if isinstance(samples, SharedSamples) else SharedSamples(samples)}
    build = functools.partial(in_worker.make_utterance_env, timeout_s=timeout_s)
    parts = [None if once_among is None else (once_among[0] + i, once_among[1]) for i in range(n_envs)]
    builds = [functools.partial(build, {**env_kwargs, "part": part}) for part in parts]
    return vectorize(builds, vec_env, n_workers, timeout_s)


def check_workers(env_kwargs: Mapping[str, Any], vec_env: str | None = None) -> str:
    """Check that rewards, partner and tools can be sent to workers, if there are any; returns where these run."""
    # Without rewards and a partner in the environments, workers would have nothing to do.
    has_work = env_kwargs.get("reward_parts") or env_kwargs.get("partner") is not None
    vec_env = vec_env or ("blocks" if has_work else "dummy")
    if vec_env == "dummy":
        return vec_env
    named = {f"reward {part.name!r}": part.function for part in env_kwargs.get("reward_parts", ())}
    of_sides = {f"the {name}": env_kwargs.get(name) for name in ("partner", "toolbox")}
    for name, value in {**named, **of_sides}.items():
        try:
            in_worker.dumps(value)
        except Exception as error:
            raise EnvWorkerError(
                f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}. {_ADVICE}; __getstate__ "
                f"of its class can omit objects that are already open."
            ) from error
    return vec_env


def vectorize(
    builds: Sequence[in_worker.EnvFn], vec_env: str, n_workers: int | None = None, timeout_s: float | None = None
) -> VecEnv:
    """Run any environments at once, each built where it runs; other arguments as for `make_vec_env`."""
    if vec_env == "dummy":
        return ForeseeingVecEnv(list(builds))
    if vec_env == "subproc":
        return subproc_vec_env(builds, timeout_s)
    return BlockVecEnv(builds, n_workers, timeout_s)


class ForeseeingVecEnv(DummyVecEnv):
    """All environments in this process; announces steps and resets to those whose partner waits.

    The reset of an environment in the middle of a step is not announced, so partners that open it are asked in turn.
    """

    def __init__(self, env_fns: list[in_worker.EnvFn]) -> None:
        super().__init__(env_fns)
        self._waiting = self.envs if in_worker.partner_waits(self.envs[0]) else []

    def reset(self) -> VecEnvObs:
        for env, seed, options in zip(self._waiting, self._seeds, self._options, strict=False):
            env.get_wrapper_attr("expect_reset")(seed=seed, options=options)
        return super().reset()

    def step_async(self, actions: np.ndarray) -> None:
        super().step_async(actions)
        for env, action in zip(self._waiting, actions, strict=False):
            env.get_wrapper_attr("expect_step")(action)


# -- worker processes -------------------------------------------------------------------------------------------------


def worker_count(n_envs: int, n_workers: int | None = None, vec_env: str = "blocks") -> int:
    """Number of worker processes; in blocks as requested, or one per core, but at most one per environment."""
    if vec_env == "blocks":
        return min(n_envs, n_workers or joblib.cpu_count())
    return n_envs if vec_env == "subproc" else 0


@dataclass
class _Watched:
    """The connection to a worker process, whose death or silence is an error that names its environments."""

    envs: range
    process: Any
    connection: Connection
    is_busy: bool = False
    limit_s: float | None = None  # for the answer to come

    def ask(self, message: Any, limit_s: float | None = None) -> None:
        """Send a message that will be answered."""
        if self.is_busy:
            self.receive()  # the answer to a step that nobody waited for
        self.limit_s, self.is_busy = limit_s, True
        with self._death_as_error():
            self.connection.send(message)

    def receive(self) -> Any:
        """The answer to the message."""
        if not self.is_busy:
            raise RuntimeError("step_wait() has no step_async() to wait for")
        with self._death_as_error():
            if self.limit_s is not None and not self.connection.poll(self.limit_s):
                raise EnvWorkerError(
                    f"the worker (process {self.process.pid}) of {_named(self.envs)} has not answered for "
                    f"{self.limit_s:g} s: a reward or the partner is stuck in a library call that cannot be "
                    f"interrupted; reward_fn.timeout_s sets the limit per environment (null disables it)"
                )
            answer = self.connection.recv()
        self.is_busy = False
        return answer

    @contextlib.contextmanager
    def _death_as_error(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join(_END_GRACE_S)
            raise self._death() from error

    def _death(self) -> Exception:
        return EnvWorkerError(
            f"an environment worker died: process {self.process.pid} with {_named(self.envs)}, exit code "
            f"{self.process.exitcode}. Its own error message, if any, is printed above; exit code -9 means that it "
            f"was killed, often due to lack of memory. The same command continues the run from its last "
            f"checkpoint; with env.vec_env: dummy there are no workers."
        )


def _named(envs: range) -> str:
    return f"environment {envs[0]}" if len(envs) == 1 else f"environments {envs[0]} to {envs[-1]}"


def _pickled(env_fns: Sequence[in_worker.EnvFn]) -> bytes:
    try:
        return in_worker.dumps(list(env_fns))
    except Exception as error:
        raise EnvWorkerError(
            f"the environments cannot be sent to worker processes: {type(error).__name__}: {error}. {_ADVICE}."
        ) from error


def _context(start_method: str | None, preloaded: list[str]) -> Any:
    """The way to start worker processes."""
    has_forkserver = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context(start_method or ("forkserver" if has_forkserver else "spawn"))
    if has_forkserver:
        context.set_forkserver_preload(preloaded)  # without effect if the program has used its forkserver before
    return context


# -- one environment per process: stable-baselines3's own -------------------------------------------------------------


@dataclass
class _WatchedEnv(_Watched):
    """Stands in ``SubprocVecEnv`` for the connection to one environment."""

    step_limit_s: float | None = None
    report: Path = Path()  # what its worker writes to standard error
    command: str = ""

    def send(self, request: tuple[str, Any]) -> None:
        self.command = request[0]
        self.ask(request, self.step_limit_s if self.command == "step" else None)

    def recv(self) -> Any:
        return self.receive()

    def _death(self) -> Exception:
        said = self.report.read_text(encoding="utf-8").strip() if self.report.is_file() else ""
        if self.process.exitcode != 1 or not said:
            return super()._death()
        last = said.splitlines()[-1]
        is_missing = self.command in ("get_attr", "env_method") and last.startswith("AttributeError")
        return (AttributeError if is_missing else EnvWorkerError)(
            f"{_named(self.envs)} failed in its worker (process {self.process.pid}): {last}. env.vec_env: dummy runs "
            f"the environments in this process.\n{said}"
        )


def subproc_vec_env(env_fns: Sequence[in_worker.EnvFn], timeout_s: float | None = None) -> SubprocVecEnv:
    """stable-baselines3's ``SubprocVecEnv``, whose connections are watched. An exception ends its worker."""
    pickled, method = _pickled(env_fns), _context(None, _PRELOADED_BY_SB3).get_start_method()
    reports = tempfile.TemporaryDirectory(prefix="rl4dialog-")
    paths = [Path(reports.name, f"{i}.txt") for i in range(len(env_fns))]
    builds = [functools.partial(in_worker.start, pickled, i, {**os.environ}, path) for i, path in enumerate(paths)]
    env, limit_s = SubprocVecEnv.__new__(SubprocVecEnv), None if timeout_s is None else timeout_s + _STEP_GRACE_S
    with _surroundings_of_workers(), contextlib.suppress(EOFError, OSError):  # an error is told below
        env.__init__(builds, method)  # type: ignore[misc]
    connections: list[Connection] = [*env.remotes]
    each = enumerate(zip(env.processes, connections, paths, strict=True))
    watched = [_WatchedEnv(range(i, i + 1), *it[:2], False, None, limit_s, it[2]) for i, it in each]
    env.remotes = watched  # type: ignore[assignment]
    end = Finalize(env, _end, args=(env.processes, connections, reports), exitpriority=0)

    def close() -> None:
        for each in watched:
            if each.is_busy:
                each.process.kill()
        env.closed = True
        end()

    env.close = close  # type: ignore[method-assign]
    try:
        for one in watched:
            one.send(("get_spaces", None))
        for one in watched:
            one.recv()
    except BaseException:
        env.close()
        raise
    return env


# -- blocks of environments -------------------------------------------------------------------------------------------


@dataclass
class _Worker(_Watched):
    """A worker process with a block of environments."""

    requests: list[bytes] = field(default_factory=list)  # not sent yet
    answers: deque[Any] = field(default_factory=deque)  # received, but not read yet

    def send(self, limit_s: float | None = None) -> None:
        """Send all requests in one message."""
        if self.requests:
            self.answers.clear()
            self.ask(self.requests, limit_s)
            self.requests = []

    def answer(self) -> Any:
        """The next answer."""
        if not self.answers:
            received = self.receive()
            if isinstance(received, in_worker.Failure):
                if received.is_missing_attribute:
                    raise AttributeError(received.message) from received.cause
                raise EnvWorkerError(
                    f"{received.message}. env.vec_env: dummy runs the environments in this process."
                ) from received.cause
            self.answers.extend(in_worker.unstacked(*received) if isinstance(received, tuple) else received)
        return self.answers.popleft()


class _Remote:
    """What stands in ``SubprocVecEnv`` for the connection to one environment."""

    def __init__(self, workers: Sequence[_Worker], worker: _Worker, at: int) -> None:
        self._workers, self._worker, self._at = workers, worker, at

    def send(self, request: tuple[str, Any]) -> None:
        """Keep a request until an answer is wanted, so that a worker gets those of all its environments at once."""
        # Values of users can have classes of their files, which only cloudpickle sends; actions have not.
        pickler = pickle if request[0] == "step" else cloudpickle
        self._worker.requests.append(pickler.dumps((self._at, *request)))

    def recv(self) -> Any:
        """The environment's next answer."""
        for worker in self._workers:
            worker.send()
        return self._worker.answer()


class BlockVecEnv(SubprocVecEnv):
    """stable-baselines3's ``SubprocVecEnv`` with several environments per process.

    Observations, rewards, infos and automatic resets are identical for the same seeds. Each worker steps a block of
    adjacent environments and exchanges one message per step. An environment that raises does not end its worker.

    Args:
        env_fns: Functions that build the environments. Each worker unpickles them for itself.
        n_workers: Number of processes; by default one per core. Block sizes differ by at most one.
        timeout_s: Time limit per environment and step; by default none.
        start_method: As for ``SubprocVecEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[in_worker.EnvFn],
        n_workers: int | None = None,
        timeout_s: float | None = None,
        start_method: str | None = None,
    ) -> None:
        self.waiting = self.closed = False
        self._timeout_s = timeout_s
        pickled, context = _pickled(env_fns), _context(start_method, _PRELOADED)
        n_workers = worker_count(len(env_fns), n_workers)
        bounds = [worker * len(env_fns) // n_workers for worker in range(n_workers + 1)]
        self._workers: list[_Worker] = []
        self.processes = []
        connections: list[Connection] = []
        # Also ends the workers of environments that are forgotten, or open when the program ends, where multiprocessing
        # would wait forever for workers that ignore its SIGTERM.
        self._end = Finalize(self, _end, args=(self.processes, connections), exitpriority=0)
        with _surroundings_of_workers():
            for start, stop in itertools.pairwise(bounds):
                ours, theirs = context.Pipe()
                arguments = (theirs, pickled, range(start, stop), {**os.environ})
                process = context.Process(target=in_worker.run_block, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
                connections.append(ours)
                self._workers.append(_Worker(range(start, stop), process, ours))
        self.remotes = [
            _Remote(self._workers, worker, at) for worker in self._workers for at in range(len(worker.envs))
        ]
        try:
            for remote in self.remotes:
                remote.send(("get_spaces", None))
            spaces, *_ = [remote.recv() for remote in self.remotes]
            VecEnv.__init__(self, len(env_fns), *spaces)
        except BaseException:
            self.close()
            raise

    def reset(self) -> VecEnvObs:
        self.waiting = False
        return super().reset()

    def step_async(self, actions: np.ndarray) -> None:
        super().step_async(actions)
        for worker in self._workers:
            limit_s = self._timeout_s
            worker.send(None if limit_s is None else limit_s * len(worker.envs) + _STEP_GRACE_S)

    def step_wait(self) -> VecEnvStepReturn:
        self.waiting = False
        return super().step_wait()

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        remotes = self._get_target_remotes(indices)
        for remote in remotes:
            remote.send(("is_wrapped", (wrapper_class.__module__, wrapper_class.__qualname__)))
        return [remote.recv() for remote in remotes]

    def close(self) -> None:
        for worker in self._workers:
            if worker.is_busy:
                worker.process.kill()
        self.closed = True
        self._end()


@contextlib.contextmanager
def _surroundings_of_workers() -> Iterator[None]:
    """Hides the main module, and sets environment variables, while workers start.

    multiprocessing would run the user's script again in each worker; what environments use of it is pickled by value.
    """
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _ENVIRONMENT}
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _end(processes: Sequence[Any], connections: Sequence[Any], reports: Any = None) -> None:
    """End workers; those that do not obey are killed."""
    for connection in connections:
        # Closing is not enough: another process forked by the main process may hold a copy of the connection.
        with contextlib.suppress(OSError):
            connection.send(("close", None))
        connection.close()
    for process in processes:
        process.join(_END_GRACE_S)
        process.kill()
        process.join()
    if reports is not None:
        reports.cleanup()


# -- states of environments, for checkpoints --------------------------------------------------------------------------


def load_env_states(vec_env: VecEnv, states: Sequence[dict[str, Any]]) -> Any:
    """Restore the environments' states, those of their ``state_dict``; returns observations as ``reset()`` does."""
    observations = [
        vec_env.env_method("load_state_dict", state, indices=index)[0] for index, state in enumerate(states)
    ]
    if not isinstance(observations[0], Mapping):
        return np.stack(observations)
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}
