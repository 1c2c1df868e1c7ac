"""State that all algorithms on text have between two iterations.

A checkpoint also holds ``model/`` (language model and tokenizer in transformers' format), ``optimizer.safetensors``
and, where the policy has them, ``critic.safetensors``, ``mask.safetensors``, ``target.safetensors``,
``reference.safetensors`` if the reference follows the policy, and ``partner.safetensors`` if copies of the policy are
its partners. The initial model is not saved: on resume it is rebuilt and its hash is verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.core.errors import CheckpointError
from rl4dialog.functional.distributed import all_gather_object, n_processes, process_index
from rl4dialog.policies.saving import load_optimizer, load_policy_weights
from rl4dialog.runs.run_folder import to_plain
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.random_state import random_state


def capture_policy_state(
    algorithm: Any, of_run: Mapping[str, Any], of_process: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all state except weights, as JSON values. All processes must call this, between two iterations.

    Args:
        algorithm: The algorithm.
        of_run: Further state, equal in all processes.
        of_process: Further state of this process.
    """
    state: dict[str, Any] = to_plain(
        {
            "iteration": algorithm.iteration,
            "num_timesteps": algorithm.num_timesteps,
            "n_updates": algorithm._n_updates,
            "skipped_in_a_row": algorithm.policy.gradient_steps.guard.n_in_a_row,
            **of_run,
            "processes": all_gather_object({"random": random_state(), **(of_process or {})}),
        }
    )
    return state


def state_of_process(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of this process."""
    states: list[dict[str, Any]] = checkpoint.state["processes"]
    if len(states) != n_processes():
        raise CheckpointError(
            f"{checkpoint.path} was written by {len(states)} processes, but this run has {n_processes()}; "
            f"start the run with {len(states)}"
        )
    return states[process_index()]


def restore_policy_state(algorithm: Any, checkpoint: Checkpoint) -> None:
    """Restore weights, optimizer and counters, but not the random state."""
    load_policy_weights(algorithm.policy, checkpoint.path)
    load_optimizer(algorithm.policy.optimizer, checkpoint.path)
    algorithm.num_timesteps = checkpoint.state["num_timesteps"]
    algorithm._n_updates = checkpoint.state["n_updates"]
    algorithm.policy.gradient_steps.guard.n_in_a_row = checkpoint.state["skipped_in_a_row"]
