"""Gradient checkpointing: recomputes a layer's activations in the backward pass instead of storing them."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rl4dialog.core.errors import ConfigError


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Layers of the contained language models, as marked by transformers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_layers(model: nn.Module) -> None:
    """Recompute each layer (Chen et al. 2016, arXiv 1604.06174).

    Transformers' own switch works only in training mode, which would enable dropout.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"alg.policy.args.gradient_checkpointing: {type(model).__name__} has no layers that can be recomputed"
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward)  # type: ignore[method-assign]


def _recomputed(forward: Any) -> Any:
    @wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapper
