"""Runs many environments in a few worker processes, behind stable-baselines3's ``VecEnv``."""

from __future__ import annotations

import functools
import itertools
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import joblib
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs import block_worker
from rl4dialog.envs.block_worker import EnvFn, Reply
from rl4dialog.envs.fork_server import ForkServer, SilentWorkerError
from rl4dialog.envs.restarting_workers import RestartingWorkers

# Time limit of a step in addition to its rewards, for busy machines.
_GRACE_S = 30.0


def worker_count(n_envs: int, n_workers: int | None = None) -> int:
    """Number of worker processes: as requested, or one per core, but at most one per environment."""
    return min(n_envs, n_workers or joblib.cpu_count())


class BlockVecEnv(VecEnv):
    """Steps a block of environments in each worker process.

    It behaves like stable-baselines3's ``SubprocVecEnv``, which uses one process per environment: identical
    observations, rewards, infos and automatic resets for the same seeds. Workers are forked from a process that has
    unpickled ``env_fns``, and share the result. An environment that raises does not end its worker.

    Args:
        env_fns: Functions that build the environments in the workers.
        n_workers: Number of processes; by default one per core. Each gets a block of adjacent environments; block sizes
            differ by at most one.
        max_restarts: Number of dead workers to replace. A new worker repeats all work since the last :meth:`snapshot`,
            with identical results if the environments were seeded.
        timeout_s: Time limit per environment and step; by default none.

    Raises:
        EnvWorkerError: If a worker dies too often or does not answer in time, or an environment raises; this also
            applies to all other methods.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        n_workers: int | None = None,
        max_restarts: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        n_workers = worker_count(len(env_fns), n_workers)
        self._timeout_s = timeout_s
        self.waiting = self.closed = False
        self.max_restarts = max_restarts
        self._n_requests = 0
        bounds = [worker * len(env_fns) // n_workers for worker in range(n_workers + 1)]
        self._blocks = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
        env_fns_of = [[env_fns[i] for i in block] for block in self._blocks]
        work = functools.partial(block_worker.run_block, env_fns_of)
        self._workers: ForkServer | RestartingWorkers
        self._workers = (
            RestartingWorkers(work, n_workers, max_restarts) if max_restarts else ForkServer(work, n_workers)
        )
        self._attributes_set: list[Mapping[int, tuple[Any, ...]]] = []
        try:
            spaces = self._ask("build", {worker: () for worker in range(n_workers)})
            super().__init__(len(env_fns), *spaces[0])
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._workers.pids

    @property
    def n_restarts(self) -> int:
        """Number of workers that died and were replaced."""
        return self._workers.n_restarts if isinstance(self._workers, RestartingWorkers) else 0

    # -- episodes -------------------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        self.waiting = False
        blocks = enumerate(self._blocks)
        per_block = {w: (self._seeds[b.start : b.stop], self._options[b.start : b.stop]) for w, b in blocks}
        results = [result for block in self._ask("reset", per_block) for result in block]
        self._reset_seeds()
        self._reset_options()
        observations, infos = zip(*results, strict=True)
        self.reset_infos = list(infos)
        return self._stack(observations)

    def step_async(self, actions: np.ndarray) -> None:
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        self._send("step", {w: (actions[b.start : b.stop],) for w, b in enumerate(self._blocks)})
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        if not self.waiting:
            raise RuntimeError("step_wait() has no step_async() to wait for")
        self.waiting = False
        workers = range(len(self._blocks))
        results = [result for block in self._receive(workers, self._timeout_s) for result in block]
        observations, rewards, dones, infos, reset_infos = zip(*results, strict=True)
        self.reset_infos = list(reset_infos)
        return self._stack(observations), np.stack(rewards), np.stack(dones), list(infos)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._workers.close()

    def snapshot(self) -> None:
        """Let replaced workers restart from here; every environment must have just started an episode.

        Environments need :meth:`TextGenEnv.state_dict` and :meth:`TextGenEnv.load_state_dict` for this.
        """
        if not isinstance(self._workers, RestartingWorkers):
            return
        found = self._ask("save", {worker: () for worker in range(len(self._blocks))})
        for worker, state in enumerate(found):
            attributes = [_request("call", own[worker]) for own in self._attributes_set if worker in own]
            self._workers.begin_anew(worker, [_request("build"), *attributes, _request("load", state)])

    def _stack(self, observations: Sequence[Any]) -> VecEnvObs:
        stacked: Any = create_empty_array(self.observation_space, n=self.num_envs)
        return concatenate(self.observation_space, observations, stacked)  # type: ignore[return-value]

    # -- attributes and methods -----------------------------------------------------------------------------------

    def has_attr(self, attr_name: str) -> bool:
        return all(self._call(block_worker.has_attribute, (attr_name,)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._call(block_worker.get_attribute, (attr_name,), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        self._call(block_worker.set_attribute, (attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        return self._call(block_worker.call_method, (method_name, method_args, method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self._call(block_worker.is_wrapped, (wrapper_class.__module__, wrapper_class.__qualname__), indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"images require the render mode 'rgb_array', not {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        return self._call(block_worker.render, ())

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], indices: VecEnvIndices = None) -> list:
        """Call a function of the worker module with each of the given environments; returns results in their order."""
        if self.waiting:
            raise RuntimeError("a step is in progress; call step_wait() or reset() first")
        asked = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        per_worker: dict[int, list[int]] = {}
        for env in asked:
            per_worker.setdefault(self._worker_of(env), []).append(env)
        pickled = cloudpickle.dumps((function, arguments))
        calls = {w: ([env - self._blocks[w].start for env in envs], pickled) for w, envs in per_worker.items()}
        results = self._ask("call", calls)
        if function is block_worker.set_attribute:
            self._attributes_set.append(calls)
        found = {w: iter(result) for w, result in zip(per_worker, results, strict=True)}
        return [next(found[self._worker_of(env)]) for env in asked]

    # -- talking to the workers -----------------------------------------------------------------------------------

    def _worker_of(self, env: int) -> int:
        return next(worker for worker, block in enumerate(self._blocks) if env in block)

    def _ask(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Send a command with arguments to each worker, and wait for the results."""
        self._send(command, arguments)
        return self._receive(arguments)

    def _send(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        if self.closed:
            raise EnvWorkerError("the environments are closed")
        self._n_requests += 1
        for worker, own in arguments.items():
            try:
                self._workers.send(worker, _request(command, own, self._n_requests))
            except OSError as error:
                raise self._death_of(worker) from error

    def _receive(self, workers: Sequence[int] | Mapping[int, Any], timeout_s: float | None = None) -> list[Any]:
        replies = {worker: self._reply_of(worker, timeout_s) for worker in workers}
        for worker, reply in replies.items():
            if reply.failure is None:
                continue
            if reply.is_missing:
                raise reply.failure.as_error(reply.failure.message, AttributeError)
            raise reply.failure.as_error(
                f"environment {self._blocks[worker][reply.env]} failed in {self._name_of(worker)}: "
                f"{reply.failure.message}. env.vec_env: dummy runs the environments in this process."
            )
        return [reply.result for reply in replies.values()]

    def _reply_of(self, worker: int, timeout_s: float | None) -> Reply:
        """Return the reply to the last request, dropping those to earlier, interrupted requests."""
        limit_s = None if timeout_s is None else timeout_s * len(self._blocks[worker]) + _GRACE_S
        while True:
            try:
                reply: Reply = pickle.loads(self._workers.receive(worker, limit_s))
            except (EOFError, OSError) as error:
                raise self._death_of(worker) from error
            except SilentWorkerError as error:
                raise EnvWorkerError(
                    f"{self._name_of(worker)} with {self._envs_of(worker)} has not answered for {limit_s:g} s: a "
                    f"reward or the partner is stuck in a library call that cannot be interrupted; reward_fn.timeout_s "
                    f"sets the limit per environment (null disables it)"
                ) from error
            if reply.number == self._n_requests:
                return reply

    def _death_of(self, worker: int) -> EnvWorkerError:
        code = self._workers.exit_code(worker)
        remedy = "env.on_worker_death: restart replaces the worker"
        if self.n_restarts:
            remedy = f"{self.n_restarts} workers were already replaced (limits: env.max_restarts, and 3 per step)"
        return EnvWorkerError(
            f"an environment worker died: {self._name_of(worker)} with {self._envs_of(worker)}, exit code "
            f"{'unknown' if code is None else code}. Its own error message, if any, is printed above; exit code -9 "
            f"means that it was killed, often due to lack of memory. env.vec_env: dummy runs the environments in "
            f"this process; {remedy}."
        )

    def _envs_of(self, worker: int) -> str:
        block = self._blocks[worker]
        return f"environment {block[0]}" if len(block) == 1 else f"environments {block[0]} to {block[-1]}"

    def _name_of(self, worker: int) -> str:
        return f"worker {worker} (process {self._workers.pids[worker]})"


def _request(command: str, arguments: tuple[Any, ...] = (), number: int = 0) -> bytes:
    return pickle.dumps((number, command, cloudpickle.dumps(arguments)))
