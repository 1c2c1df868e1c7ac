"""Several environments at once, in this process or in workers, behind stable-baselines3's ``VecEnv``."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
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
    return BlockVecEnv(builds, worker_count(len(builds), n_workers, vec_env), timeout_s)


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


# -- blocks of environments in worker processes -----------------------------------------------------------------------


def worker_count(n_envs: int, n_workers: int | None = None, vec_env: str = "blocks") -> int:
    """Number of worker processes; in blocks as requested, or one per core, but at most one per environment."""
    if vec_env == "blocks":
        return min(n_envs, n_workers or joblib.cpu_count())
    return n_envs if vec_env == "subproc" else 0


@dataclass
class _Worker:
    """A worker process, seen from the main process."""

    envs: range
    process: Any
    connection: Connection
    requests: list[bytes] = field(default_factory=list)  # not sent yet
    answers: deque[Any] = field(default_factory=deque)  # received, but not read yet
    is_busy: bool = False
    limit_s: float | None = None  # for the answer to come

    def send(self, limit_s: float | None = None) -> None:
        """Send all requests in one message."""
        if not self.requests:
            return
        if self.is_busy:
            self._receive()  # the answer to a step that nobody waited for
        self.answers.clear()
        self.limit_s, self.is_busy = limit_s, True
        with self._death_as_error():
            self.connection.send(self.requests)
        self.requests = []

    def answer(self) -> Any:
        """The next answer."""
        if not self.answers:
            if not self.is_busy:
                raise RuntimeError("step_wait() has no step_async() to wait for")
            received = self._receive()
            if isinstance(received, in_worker.Failure):
                if received.is_missing_attribute:
                    raise AttributeError(received.message) from received.cause
                raise EnvWorkerError(
                    f"{received.message}. env.vec_env: dummy runs the environments in this process."
                ) from received.cause
            self.answers.extend(in_worker.unstacked(*received) if isinstance(received, tuple) else received)
        return self.answers.popleft()

    def _receive(self) -> Any:
        with self._death_as_error():
            if self.limit_s is not None and not self.connection.poll(self.limit_s):
                raise EnvWorkerError(
                    f"the worker (process {self.process.pid}) of {_named(self.envs)} has not answered for "
                    f"{self.limit_s:g} s: a reward or the partner is stuck in a library call that cannot be "
                    f"interrupted; reward_fn.timeout_s sets the limit per environment (null disables it)"
                )
            answer = pickle.loads(self.connection.recv_bytes())
        self.is_busy = False
        return answer

    @contextlib.contextmanager
    def _death_as_error(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join(_END_GRACE_S)
            raise EnvWorkerError(
                f"an environment worker died: process {self.process.pid} with {_named(self.envs)}, exit code "
                f"{self.process.exitcode}. Its own error message, if any, is printed above; exit code -9 means that it "
                f"was killed, often due to lack of memory. The same command continues the run from its last "
                f"checkpoint; with env.vec_env: dummy there are no workers."
            ) from error


def _named(envs: range) -> str:
    return f"environment {envs[0]}" if len(envs) == 1 else f"environments {envs[0]} to {envs[-1]}"


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
        try:
            pickled = in_worker.dumps(list(env_fns))
        except Exception as error:
            raise EnvWorkerError(
                f"the environments cannot be sent to worker processes: {type(error).__name__}: {error}. {_ADVICE}."
            ) from error
        has_forkserver = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(start_method or ("forkserver" if has_forkserver else "spawn"))
        if has_forkserver:
            context.set_forkserver_preload(_PRELOADED)  # without effect if the program has used its forkserver before
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


def _end(processes: Sequence[Any], connections: Sequence[Any]) -> None:
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


# -- states of environments, for checkpoints --------------------------------------------------------------------------


def env_states(vec_env: VecEnv) -> list[dict[str, Any]]:
    """State of each environment, which has a ``state_dict``."""
    return vec_env.env_method("state_dict")


def load_env_states(vec_env: VecEnv, states: Sequence[dict[str, Any]]) -> Any:
    """Restore the environments' states from `env_states`; returns the observations as ``reset()`` does."""
    observations = [
        vec_env.env_method("load_state_dict", state, indices=index)[0] for index, state in enumerate(states)
    ]
    if not isinstance(observations[0], Mapping):
        return np.stack(observations)
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}
