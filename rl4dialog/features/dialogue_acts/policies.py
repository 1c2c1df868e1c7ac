"""Fully connected policies of stable-baselines3, and files of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ModelError
from rl4dialog.policies.saving import loaded_tensors

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU, "silu": nn.SiLU}


def mlp_policy(
    observation_space: spaces.Space,
    net_arch: list[Count] | dict[str, list[Count]] | None = None,
    activation: Literal["relu", "tanh", "elu", "leaky_relu", "silu"] | None = None,
    n_quantiles: Count | None = None,
) -> tuple[str, dict[str, Any]]:
    """Fully connected networks: the algorithm's ``MlpPolicy``, or ``MultiInputPolicy`` for ``Dict`` observations.

    Args:
        observation_space: The environments' observation space.
        net_arch: Units of the hidden layers, for all networks or by network: ``{pi: [64], vf: [64]}`` on-policy,
            ``{pi: [64], qf: [64]}`` for actor-critic algorithms off-policy. Default: the algorithm's.
        activation: Activation function. Default: the algorithm's.
        n_quantiles: ``qrdqn`` only: number of quantiles. Default: 200.

    Returns:
        The name of the policy in stable-baselines3, and its ``policy_kwargs``.
    """
    activation_fn = None if activation is None else _ACTIVATIONS[activation]
    kwargs = {"net_arch": net_arch, "activation_fn": activation_fn, "n_quantiles": n_quantiles}
    name = "MultiInputPolicy" if isinstance(observation_space, spaces.Dict) else "MlpPolicy"
    return name, {key: value for key, value in kwargs.items() if value is not None}


POLICY_FILE = "policy.safetensors"
_MADE_FOR = "made_for"


def save_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Save weights, target networks included, with ``made_for``, a hash of what inputs and outputs mean."""
    folder.mkdir(parents=True, exist_ok=True)
    # Cloned, because networks that share a feature extractor share its tensors.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / POLICY_FILE, {_MADE_FOR: str(getattr(policy, _MADE_FOR, ""))})


def load_plain_policy(policy: nn.Module, folder: Path) -> None:
    """Load weights saved by :func:`save_plain_policy` into a policy of the same architecture."""
    path = folder / POLICY_FILE
    tensors = loaded_tensors(path)
    with safe_open(path, "pt") as file:
        made_for = (file.metadata() or {}).get(_MADE_FOR, "")
    if made_for and made_for != getattr(policy, _MADE_FOR, made_for):
        others = "other dialogue acts or another database, or other goals or another estimator, than the config has now"
        raise ModelError(f"{path} was trained with {others}; use the files and arguments of the training")
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit the policy of the config: {error}") from error
