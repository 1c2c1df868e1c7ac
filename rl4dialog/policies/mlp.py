"""Policies of plain observations: stable-baselines3's own, by name and arguments."""

from __future__ import annotations

from typing import Any, Literal

from gymnasium import spaces
from torch import nn

from rl4dialog.core.arguments import Count

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
