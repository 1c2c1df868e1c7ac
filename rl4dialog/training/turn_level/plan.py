"""The rows of ``--dry_run`` for a turn-level run, from an algorithm that is built and thrown away."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from stable_baselines3.common.env_checker import check_env

from rl4dialog.core.config import TURN_GOALS, TurnLevelConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.block_vec_env import worker_count
from rl4dialog.envs.sb3_workers import close
from rl4dialog.training.building.turn_level import build_evaluation_envs, build_turn_level_algorithm
from rl4dialog.training.memory import MIB


def add_turn_level_rows(table: Table, config: TurnLevelConfig) -> None:
    """Add spaces, lengths and sizes to a plan."""
    _check_env(config)
    algorithm = build_turn_level_algorithm(config)
    close(algorithm.env)
    env, n_timesteps = config.env, algorithm.timesteps_per_iteration
    n_workers = {"blocks": worker_count(env.n_envs, env.n_workers), "subproc": env.n_envs, "dummy": 0}[env.vec_env]
    table.add_row("observations", str(algorithm.observation_space))
    table.add_row("actions", str(algorithm.action_space))
    table.add_row("environments", f"{env.n_envs}")
    table.add_row("worker processes", str(n_workers or "none"))
    table.add_row("iterations", f"{config.n_iters:,}")
    table.add_row("timesteps per iteration", f"{n_timesteps:,}")
    table.add_row("timesteps", f"{n_timesteps * config.n_iters:,}")
    buffer = getattr(algorithm, "replay_buffer", None)
    if buffer is not None:
        n_updates = n_timesteps if algorithm.gradient_steps < 0 else algorithm.gradient_steps
        n_before = min(config.n_iters, algorithm.learning_starts // n_timesteps)
        table.add_row("iterations before training", f"{n_before:,}")
        table.add_row("optimizer steps", f"{n_updates * (config.n_iters - n_before):,}")
        table.add_row("replay buffer", f"{_size(buffer) / MIB:,.0f} MiB when it is full")
    table.add_row("policy parameters", f"{sum(each.numel() for each in algorithm.policy.parameters()):,}")
    table.add_row("episodes of an evaluation", f"{config.train_evaluation.n_eval_episodes}")


def _check_env(config: TurnLevelConfig) -> None:
    """Check an environment with stable-baselines3's ``check_env``."""
    if config.env.id == TURN_GOALS:
        return  # vectorized from the start
    envs = build_evaluation_envs(config, "val")
    try:
        check_env(envs.envs[0], warn=False)
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"env.id: {config.env.id} is not a valid environment for stable-baselines3: {error}"
        ) from error
    finally:
        envs.close()


def _size(buffer: Any) -> int:
    arrays = [
        each for value in vars(buffer).values() for each in (value.values() if isinstance(value, dict) else [value])
    ]
    return sum(getattr(array, "nbytes", 0) for array in arrays)
