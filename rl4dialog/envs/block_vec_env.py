"""Runs many environments in a few worker processes, behind stable-baselines3's ``VecEnv``."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any

import cloudpickle
import gymnasium as gym
import joblib
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.block_worker import EnvFn, call_method, is_wrapped, run_block
from rl4dialog.envs.columns import unpack
from rl4dialog.envs.fork_server import Failure, ForkServer

_logger = logging.getLogger(__name__)
# Time limit of a step in addition to its rewards, for busy machines.
_GRACE_S = 30.0
# A request that has killed three workers would kill the next one too.
_MAX_DEATHS_IN_A_ROW = 3


def worker_count(n_envs: int, n_workers: int | None = None) -> int:
    """Number of worker processes: as requested, or one per core, but at most one per environment."""
    return min(n_envs, n_workers or joblib.cpu_count())


@dataclass
class _Worker:
    """A worker, whichever process it currently is."""

    number: int
    envs: range
    pid: int
    connection: Connection
    is_busy: bool = False
    limit_s: float | None = None  # for the reply to come
    requests: list[bytes] = field(default_factory=list)  # since the last snapshot
    attributes_set: list[tuple[Any, ...]] = field(default_factory=list)  # arguments of all such calls
    n_deaths_in_a_row: int = 0

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        envs = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.number} (process {self.pid}) with {envs}"


class BlockVecEnv(VecEnv):
    """Steps a block of environments in each worker process.

    It behaves like stable-baselines3's ``SubprocVecEnv``, which uses one process per environment: identical
    observations, rewards, infos and automatic resets for the same seeds. Workers are forked from a process that has
    loaded their modules, and share these. An environment that raises does not end its worker.

    Args:
        env_fns: Functions that build the environments. Each worker unpickles them for itself.
        n_workers: Number of processes; by default one per core. Each gets a block of adjacent environments; block sizes
            differ by at most one.
        max_restarts: Number of dead workers to replace. A new worker repeats all work since the last :meth:`reset` or
            :meth:`snapshot`, with identical results. This requires the methods ``state_dict()`` and
            ``load_state_dict(state)`` of the environments.
        timeout_s: Time limit per environment and step; by default none.
        shared: Constant objects to which ``env_fns`` refer; all workers share them.

    Attributes:
        n_restarts: Number of workers that died and were replaced.

    Raises:
        EnvWorkerError: If a worker dies too often or does not answer in time, or an environment raises; this also
            applies to all other methods. If dead workers are to be replaced, but the environments lack the methods.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        n_workers: int | None = None,
        max_restarts: int = 0,
        timeout_s: float | None = None,
        shared: Sequence[Any] = (),
    ) -> None:
        self.waiting = self.closed = False
        self.max_restarts, self.n_restarts, self._timeout_s = max_restarts, 0, timeout_s
        n_workers = worker_count(len(env_fns), n_workers)
        bounds = [worker * len(env_fns) // n_workers for worker in range(n_workers + 1)]
        blocks = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
        self._server = ForkServer(run_block, list(env_fns), shared)
        self._workers = [_Worker(number, envs, *self._server.start(envs)) for number, envs in enumerate(blocks)]
        self._worker_of = [worker for worker in self._workers for _ in worker.envs]
        try:
            spaces, *_ = self._ask("build", {worker.number: () for worker in self._workers})
            super().__init__(len(env_fns), *spaces)
            if max_restarts and not (self.has_attr("state_dict") and self.has_attr("load_state_dict")):
                raise EnvWorkerError(
                    f"dead workers cannot be replaced (max_restarts={max_restarts}): the environments need the methods "
                    f"state_dict() and load_state_dict(state), to continue in a new process"
                )
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    # -- episodes -------------------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        self.waiting = False
        per_worker = {w.number: (self._seeds[_rows(w)], self._options[_rows(w)]) for w in self._workers}
        results = itertools.chain(*map(unpack, self._ask("reset", per_worker)))
        observations, self.reset_infos = map(list, zip(*results, strict=True))
        self._reset_seeds()
        self._reset_options()
        self.snapshot()
        return self._stack(observations)

    def step_async(self, actions: np.ndarray) -> None:
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        self._send("step", {worker.number: (actions[_rows(worker)],) for worker in self._workers}, self._timeout_s)
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        if not self.waiting:
            raise RuntimeError("step_wait() has no step_async() to wait for")
        self.waiting = False
        results = itertools.chain(*map(unpack, self._results(self._workers)))
        observations, rewards, dones, infos, reset_infos = zip(*results, strict=True)
        self.reset_infos = [old if new is None else new for old, new in zip(self.reset_infos, reset_infos, strict=True)]
        return self._stack(observations), np.stack(rewards), np.stack(dones), list(infos)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for worker in self._workers:
            # Closing is not enough: another process forked by the main process may hold a copy of the connection.
            with contextlib.suppress(OSError):
                worker.connection.send_bytes(b"")
            worker.connection.close()
        self._server.close()

    def snapshot(self) -> None:
        """Let replaced workers restart from here; every environment must have just started an episode.

        Without ``max_restarts``, this does nothing.
        """
        if not self.max_restarts:
            return
        states = self.env_method("state_dict")
        for worker in self._workers:
            worker.requests = [cloudpickle.dumps(("build", worker.attributes_set, states[_rows(worker)]))]

    def _stack(self, observations: Iterable[Any]) -> VecEnvObs:
        stacked: Any = create_empty_array(self.observation_space, n=self.num_envs)
        return concatenate(self.observation_space, observations, stacked)  # type: ignore[return-value]

    # -- attributes and methods -----------------------------------------------------------------------------------

    def has_attr(self, attr_name: str) -> bool:
        return all(self._call(methodcaller("has_wrapper_attr", attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._call(methodcaller("get_wrapper_attr", attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        self._call(methodcaller("__setattr__", attr_name, value), indices, sets_attribute=True)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        return self._call(partial(call_method, name=method_name, args=method_args, kwargs=method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        module, name = wrapper_class.__module__, wrapper_class.__qualname__
        return self._call(partial(is_wrapped, module=module, name=name), indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"images require the render mode 'rgb_array', not {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        return self._call(methodcaller("render"))

    def _call(
        self, function: Callable[[gym.Env], Any], indices: VecEnvIndices = None, sets_attribute: bool = False
    ) -> list[Any]:
        """Call a function with each of the given environments, in the workers; returns results in their order."""
        if self.waiting:
            raise RuntimeError("a step is in progress; call step_wait() or reset() first")
        asked = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        pickled = cloudpickle.dumps(function)
        calls: dict[int, tuple[list[int], bytes]] = {}
        for env in asked:
            worker = self._worker_of[env]
            calls.setdefault(worker.number, ([], pickled))[0].append(env - worker.envs.start)
        results = dict(zip(calls, map(iter, self._ask("call", calls)), strict=True))
        for number in calls if sets_attribute else ():
            self._workers[number].attributes_set.append(calls[number])
        return [next(results[self._worker_of[env].number]) for env in asked]

    # -- talking to the workers -----------------------------------------------------------------------------------

    def _ask(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Send a command with arguments to workers by number, and wait for the results."""
        self._send(command, arguments)
        return self._results([self._workers[number] for number in arguments])

    def _send(self, command: str, arguments: Mapping[int, tuple[Any, ...]], timeout_s: float | None = None) -> None:
        if self.closed:
            raise EnvWorkerError("the environments are closed")
        for worker in (self._workers[number] for number in arguments):
            if worker.is_busy:
                self._reply_of(worker)  # to a request that was interrupted
            request = cloudpickle.dumps((command, *arguments[worker.number]))
            if self.max_restarts:
                worker.requests.append(request)
            worker.is_busy = True
            worker.limit_s = None if timeout_s is None else timeout_s * len(worker.envs) + _GRACE_S
            try:
                worker.connection.send_bytes(request)
            except OSError as death:
                self._replace(worker, death)

    def _results(self, workers: Sequence[_Worker]) -> list[Any]:
        results = [self._reply_of(worker) for worker in workers]
        for worker, result in zip(workers, results, strict=True):
            _check(worker, result)
        return results

    def _reply_of(self, worker: _Worker) -> Any:
        """Wait for the reply of a worker, or of its replacement."""
        while True:
            try:
                reply = _receive(worker)
            except (EOFError, OSError) as death:
                self._replace(worker, death)
            else:
                worker.is_busy, worker.n_deaths_in_a_row = False, 0
                return reply

    def _replace(self, worker: _Worker, death: Exception) -> None:
        """Start a process in place of a dead one, and repeat its requests; the last one remains to be answered."""
        while True:
            code, dead = self._server.exit_code(worker.pid), str(worker)
            worker.n_deaths_in_a_row += 1
            if self.n_restarts >= self.max_restarts or worker.n_deaths_in_a_row > _MAX_DEATHS_IN_A_ROW:
                remedy = "env.on_worker_death: restart replaces workers of text environments"
                if self.n_restarts:
                    remedy = (
                        f"{self.n_restarts} workers were already replaced (limits: env.max_restarts, and 3 per step)"
                    )
                raise EnvWorkerError(
                    f"an environment worker died: {dead}, exit code {code}. Its own error message, if any, is printed "
                    f"above; exit code -9 means that it was killed, often due to lack of memory. env.vec_env: dummy "
                    f"runs the environments in this process; {remedy}."
                ) from death
            self.n_restarts += 1
            worker.connection.close()
            worker.pid, worker.connection = self._server.start(worker.envs)
            _logger.warning(
                "environment %s died with exit code %s; replaced by process %d (restart %d of %d)",
                *(dead, code, worker.pid, self.n_restarts, self.max_restarts),
            )
            start, *others = worker.requests
            try:
                worker.connection.send_bytes(start)
                for request in others:
                    reply = _receive(worker)
                    if request is others[0]:
                        _check(worker, reply)
                    worker.connection.send_bytes(request)
                return
            except (EOFError, OSError) as error:
                death = error


def _rows(worker: _Worker) -> slice:
    return slice(worker.envs.start, worker.envs.stop)


def _receive(worker: _Worker) -> Any:
    if worker.limit_s is not None and not worker.connection.poll(worker.limit_s):
        raise EnvWorkerError(
            f"{worker} has not answered for {worker.limit_s:g} s: a reward or the partner is stuck in a library call "
            f"that cannot be interrupted; reward_fn.timeout_s sets the limit per environment (null disables it)"
        )
    return pickle.loads(worker.connection.recv_bytes())


def _check(worker: _Worker, reply: Any) -> None:
    """Raise the error of a worker."""
    if not isinstance(reply, Failure):
        return
    if reply.is_missing_attribute:
        raise AttributeError(reply.message) from reply.cause
    raise EnvWorkerError(
        f"environment {worker.envs[reply.env]} failed in {worker}: {reply.message}. env.vec_env: dummy runs the "
        f"environments in this process."
    ) from reply.cause
