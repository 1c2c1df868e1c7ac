"""Recovery from dead environment workers, and the number of restarts."""

from __future__ import annotations

from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.functional.distributed import all_reduce_numbers
from rl4dialog.training.callbacks.base import IterationCallback


class WorkerRecoveryCallback(IterationCallback):
    """Takes a snapshot of the environments between iterations, when each starts an episode.

    Logs ``rollout/worker_restarts``: restarts in all processes since the run started or was resumed.

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
