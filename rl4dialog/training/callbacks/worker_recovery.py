"""Environment workers that may die: what keeps them replaceable, and how many were replaced."""

from __future__ import annotations

from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.functional.distributed import all_reduce_numbers
from rl4dialog.training.callbacks.base import IterationCallback


class WorkerRecoveryCallback(IterationCallback):
    """Takes a snapshot of the environments between iterations, where each begins an episode.

    Logs ``rollout/worker_restarts``, of all processes since the run began or was resumed.

    Args:
        env: The environments.
    """

    def __init__(self, env: BlockVecEnv) -> None:
        super().__init__()
        self._env = env

    def _on_rollout_start(self) -> None:
        self._env.snapshot()

    def _on_rollout_end(self) -> None:
        self.logger.record("rollout/worker_restarts", int(all_reduce_numbers(self._env.n_restarts)[0]))
