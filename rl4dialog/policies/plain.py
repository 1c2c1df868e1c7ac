"""Saving and loading the policies of stable-baselines3, as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from rl4dialog.core.errors import ModelError

POLICY_FILE = "policy.safetensors"


def save_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Save the weights of a policy, including its target networks, to a folder.

    Args:
        policy: The policy.
        folder: Target folder, created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Cloned, because networks that share a feature extractor share its tensors.
    save_file(
        {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}, folder / POLICY_FILE
    )


def load_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Load weights saved by :func:`save_plain_policy` into a policy of the same architecture.

    Raises:
        ModelError: If the file is missing, or belongs to another architecture.
    """
    path = folder / POLICY_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    try:
        policy.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit the policy of the config: {error}") from error
