"""Complete state of a stable-baselines3 algorithm between iterations.

A checkpoint also holds ``model/`` (the policy), ``optimizer.safetensors`` (all optimizers, and tensors that the
algorithm trains beside the policy) and ``experience.safetensors`` (the last observations, and the replay buffer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from stable_baselines3.common.base_class import recursive_getattr
from stable_baselines3.common.vec_env import VecTransposeImage
from torch import Tensor

from rl4dialog.core.errors import CheckpointError
from rl4dialog.envs.vectorize import env_states, load_env_states
from rl4dialog.policies.plain import load_plain_policy, save_plain_policy
from rl4dialog.policies.saving import OPTIMIZER_FILE, optimizer_tensors, restore_optimizer
from rl4dialog.runs.run_folder import MODEL_FOLDER, to_plain
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.random_state import random_state, set_random_state

_EXPERIENCE_FILE = "experience.safetensors"
_OF_THIS_PROCESS = ("start_time", "stop_requested", "_num_timesteps_at_start")


def capture_state(algorithm: Any) -> dict[str, Any]:
    """Return all state except arrays and tensors, as JSON values.

    Every number that is an attribute of the algorithm is included, such as DQN's ``exploration_rate``.
    """
    buffer = getattr(algorithm, "replay_buffer", None)
    numbers = {
        name: value
        for name, value in vars(algorithm).items()
        if isinstance(value, (int, float, np.number)) and name not in _OF_THIS_PROCESS
    }
    state: dict[str, Any] = to_plain(
        {
            "iteration": algorithm.iteration,
            "numbers": numbers,
            "random": random_state(),
            "actions_random": algorithm.action_space.np_random.bit_generator.state,
            "envs": env_states(algorithm.env),
            "episodes": list(algorithm.ep_info_buffer),
            "successes": list(algorithm.ep_success_buffer),
            "replay": None if buffer is None else {"pos": buffer.pos, "full": buffer.full},
        }
    )
    return state


def save_state(algorithm: Any, folder: Path) -> None:
    """Write all arrays and tensors to a folder."""
    save_plain_policy(algorithm.policy, folder / MODEL_FOLDER)
    save_file(_trained_beside_policy(algorithm), folder / OPTIMIZER_FILE)
    arrays = dict(_named("observations", algorithm._last_obs))
    arrays["episode_starts"] = algorithm._last_episode_starts
    save_arrays(
        {name: np.ascontiguousarray(array) for name, array in (arrays | _replay_rows(algorithm)).items()},
        folder / _EXPERIENCE_FILE,
    )


def restore_state(algorithm: Any, checkpoint: Checkpoint) -> None:
    """Restore the state of a checkpoint in an algorithm built from the same config."""
    state, arrays = checkpoint.state, load_arrays(checkpoint.path / _EXPERIENCE_FILE)
    load_plain_policy(algorithm.policy, checkpoint.path / MODEL_FOLDER)
    _restore_trained(algorithm, checkpoint.path / OPTIMIZER_FILE)
    for name, value in state["numbers"].items():
        setattr(algorithm, name, value)
    for name, episodes in (("ep_info_buffer", state["episodes"]), ("ep_success_buffer", state["successes"])):
        setattr(algorithm, name, deque(episodes, maxlen=algorithm._stats_window_size))
    if state["replay"] is not None:
        buffer = algorithm.replay_buffer
        buffer.pos, buffer.full = state["replay"]["pos"], state["replay"]["full"]
        for name, rows in _replay_rows(algorithm).items():
            rows[:] = arrays[name]
    observations: Any = load_env_states(algorithm.env, state["envs"])
    if isinstance(algorithm.env, VecTransposeImage):  # stable-baselines3 wraps environments with images in it
        observations = algorithm.env.transpose_observations(observations)
    for name, observation in _named("observations", observations):
        if not np.array_equal(np.asarray(observation, arrays[name].dtype), arrays[name], equal_nan=True):
            raise CheckpointError(
                f"the environments do not return to where they were in {checkpoint.path}: they depend on more than "
                f"np_random and the actions of an episode. Define state_dict() and load_state_dict() in the "
                f"environment's class, and register it with EnvRegistry"
            )
    algorithm._last_obs = (
        {name: arrays[f"observations.{name}"] for name in observations}
        if isinstance(observations, Mapping)
        else arrays["observations"]
    )
    algorithm._last_episode_starts = arrays["episode_starts"]
    algorithm.action_space.np_random.bit_generator.state = state["actions_random"]
    set_random_state(state["random"])


def _trained_beside_policy(algorithm: Any) -> dict[str, Tensor]:
    """The states of all optimizers, and tensors such as SAC's entropy coefficient, by path."""
    modules, variables = algorithm._get_torch_save_params()
    found = {name: recursive_getattr(algorithm, name).detach() for name in variables}
    for name in set(modules) - {"policy"}:
        optimizer = recursive_getattr(algorithm, name)
        found |= {f"{name}/{key}": tensor for key, tensor in optimizer_tensors(optimizer).items()}
    return {name: tensor.cpu().contiguous() for name, tensor in sorted(found.items())}


def _restore_trained(algorithm: Any, path: Path) -> None:
    saved = load_file(path)
    modules, variables = algorithm._get_torch_save_params()
    for name in variables:
        recursive_getattr(algorithm, name).data.copy_(saved[name])
    for name in set(modules) - {"policy"}:
        own = {key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")}
        restore_optimizer(recursive_getattr(algorithm, name), own, path)


def _replay_rows(algorithm: Any) -> dict[str, np.ndarray]:
    """The filled rows of the replay buffer's arrays, as views, by name."""
    buffer = getattr(algorithm, "replay_buffer", None)
    if buffer is None:
        return {}
    n_rows = buffer.buffer_size if buffer.full else buffer.pos
    named = (pair for name, value in vars(buffer).items() for pair in _named(f"replay.{name}", value))
    return {name: array[:n_rows] for name, array in named}


def _named(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """An array, or each of a mapping of arrays, with its name; nothing for other values."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(f"{name}.{key}", each)
