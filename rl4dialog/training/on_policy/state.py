"""Complete state of an on-policy algorithm between iterations, and the critic of another run."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import CheckpointError, ConfigError
from rl4dialog.core.pretrained import load_pretrained
from rl4dialog.envs.vectorize import env_states, load_env_states
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import CRITIC_FILE, MODEL_FOLDER, gathered, load_state_beside
from rl4dialog.training.checkpoint import Checkpoint, newest_folders, read_checkpoint
from rl4dialog.training.policy_state import capture_policy_state, restore_policy_state, state_of_process
from rl4dialog.training.random_state import set_random_state

PARTNER_FILE = "partner.safetensors"


def capture_state(algorithm: Any) -> dict[str, Any]:
    """Return all state except weights. All processes must call this, between two iterations.

    Returns:
        JSON values.
    """
    normalizer, partner = algorithm.collector.normalizer, algorithm.collector.partner
    of_run = {
        "kl_controller": algorithm.kl_controller.state_dict(),
        "normalizer": normalizer.state_dict() if normalizer is not None else None,
        "partner": partner.state_dict() if partner is not None else {},
    }
    of_process = {"envs": env_states(algorithm.env), "episodes": list(algorithm.ep_info_buffer or [])}
    return capture_policy_state(algorithm, of_run, of_process)


def restore_state(algorithm: Any, checkpoint: Checkpoint) -> None:
    """Restore the state of a checkpoint in an algorithm built from the same config.

    ``learn(..., reset_num_timesteps=False)`` then continues with the next iteration.
    """
    state, own = checkpoint.state, state_of_process(checkpoint)
    if len(own["envs"]) != algorithm.env.num_envs:
        raise CheckpointError(
            f"{checkpoint.path} has {len(own['envs'])} environments per process, not {algorithm.env.num_envs}"
        )
    restore_policy_state(algorithm, checkpoint)
    algorithm.kl_controller.load_state_dict(state["kl_controller"])
    if algorithm.collector.normalizer is not None:
        algorithm.collector.normalizer.load_state_dict(state["normalizer"])
    partner = algorithm.collector.partner
    if partner is not None and (saved := state.get("partner")):
        path = checkpoint.path / PARTNER_FILE
        partner.load_state(saved, load_file(path) if path.is_file() else {})
    algorithm.ep_info_buffer = deque(own["episodes"], maxlen=algorithm._stats_window_size)
    algorithm.ep_success_buffer = deque(maxlen=algorithm._stats_window_size)
    algorithm._last_obs = load_env_states(algorithm.env, own["envs"])
    set_random_state(own["random"])


def save_partner(algorithm: Any, folder: Path | None) -> None:
    """Save the tensors of a partner in the main process, if it has some.

    Args:
        algorithm: The algorithm.
        folder: Target folder; ``None`` in a process that does not write.
    """
    partner = algorithm.collector.partner
    if folder is not None and partner is not None and (tensors := gathered(partner.tensors())):
        save_file(tensors, folder / PARTNER_FILE)


def find_initial_critic(config: OnPolicyConfig) -> Checkpoint | None:
    """Find the newest checkpoint of the run whose critic a config starts with, if it names one."""
    run_folder = config.alg.policy.args.critic_from
    if run_folder is None:
        return None
    where = f"alg.policy.args.critic_from: {run_folder}"
    try:
        os.listdir(run_folder)
    except OSError as error:
        raise ConfigError(f"{where} is not a folder that can be read: {error.strerror}") from error
    newest = next(iter(newest_folders(Path(run_folder))), None)
    if newest is None:
        raise ConfigError(f"{where} has no checkpoint; name the folder of a run with an algorithm that has a critic")
    try:
        checkpoint = read_checkpoint(newest)
    except CheckpointError as error:
        raise ConfigError(f"{where}: {error}; remove it to use the checkpoint before it") from error
    if not (checkpoint.path / CRITIC_FILE).is_file():
        raise ConfigError(f"{where} has no critic; name the folder of a run with an algorithm that has one")
    return checkpoint


def load_initial_critic(policy: LMActorCriticPolicy, checkpoint: Checkpoint, reference_hash: str) -> None:
    """Load the critic of another run's checkpoint.

    Args:
        policy: A new policy.
        checkpoint: Result of :func:`find_initial_critic`.
        reference_hash: Hash of the initial model of this run.
    """
    where = f"alg.policy.args.critic_from: {checkpoint.path}"
    saved = load_pretrained(AutoTokenizer, str(checkpoint.path / MODEL_FOLDER), "tokenizer", where)
    if saved.get_vocab() != policy.end_of_turn.tokenizer.get_vocab():
        raise ConfigError(f"{where} was trained with another tokenizer; use the tokenizer block of that run")
    if policy.critic_kind == "shared" and checkpoint.state["reference_hash"] != reference_hash:
        raise ConfigError(
            f"{where} began with another model. A shared critic is only a head on the states of its model: begin with "
            f"the same one (also the same warm start and seed), or use critic: separate in both runs"
        )
    load_state_beside(policy, checkpoint.path, CRITIC_FILE)
