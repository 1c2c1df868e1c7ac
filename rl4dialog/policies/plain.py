"""Saving and loading the policies of stable-baselines3, as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from rl4dialog.core.errors import ModelError

POLICY_FILE = "policy.safetensors"
_MADE_FOR = "made_for"


def save_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Save the weights of a policy, including its target networks, to a folder.

    Args:
        policy: The policy. Its attribute ``made_for``, if any, is a hash of what its inputs and outputs mean.
        folder: Target folder, created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Cloned, because networks that share a feature extractor share its tensors.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / POLICY_FILE, {_MADE_FOR: str(getattr(policy, _MADE_FOR, ""))})


def load_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Load weights saved by :func:`save_plain_policy` into a policy of the same architecture."""
    path = folder / POLICY_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    with safe_open(path, "pt") as file:
        made_for = (file.metadata() or {}).get(_MADE_FOR, "")
    if made_for and made_for != getattr(policy, _MADE_FOR, made_for):
        raise ModelError(
            f"{path} was trained with other dialogue acts or another database, or other goals or another estimator, "
            f"than those that the config describes now; use the files and arguments of the training"
        )
    try:
        policy.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit the policy of the config: {error}") from error
