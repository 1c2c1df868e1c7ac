"""Optimizers by config name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.core.registry import import_object

OPTIMIZERS = {
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adam_8bit": "bitsandbytes.optim:Adam8bit",
    "adamw_8bit": "bitsandbytes.optim:AdamW8bit",
}
"""The 8-bit variants store Adam's moments in a quarter of the memory (Dettmers et al. 2021, arXiv 2110.02861)."""


def optimizer_class(name: str | type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return the optimizer class of a name; a class is returned unchanged."""
    if isinstance(name, type):
        return name
    if name not in OPTIMIZERS:
        raise ConfigError(
            f"alg.policy.args.optimizer_class: unknown {name!r}{nearest_hint(str(name), OPTIMIZERS)} "
            f"(known: {', '.join(OPTIMIZERS)})"
        )
    try:
        found: Any = import_object(OPTIMIZERS[name])
    except ImportError as error:
        raise ConfigError(
            f"alg.policy.args.optimizer_class: {name} needs the package bitsandbytes: pip install 'rl4dialog[8bit]'"
        ) from error
    return found  # type: ignore[no-any-return]


def check_optimizer(name: str | type[torch.optim.Optimizer], kwargs: Mapping[str, Any]) -> None:
    """Check that an optimizer exists and accepts its arguments."""
    chosen: Any = optimizer_class(name)
    try:
        chosen([torch.nn.Parameter(torch.zeros(1))], lr=1.0, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"alg.policy.args.optimizer_kwargs: {shown(kwargs)} does not fit {name!r}: {error}"
        ) from error


def with_defaults(
    chosen: type[torch.optim.Optimizer], kwargs: Mapping[str, Any] | None, weight_decay: float | None
) -> dict[str, Any]:
    """Complete an optimizer's arguments with ``weight_decay``, if given, and better defaults than torch's."""
    kwargs = {**(kwargs or {}), **({} if weight_decay is None else {"weight_decay": weight_decay})}
    if chosen in (torch.optim.Adam, torch.optim.AdamW):
        # https://arxiv.org/abs/2403.17031 (detail 8): this affects the approximate KL of the first updates.
        kwargs.setdefault("eps", 1e-5)
        if not {"foreach", "capturable", "differentiable"} & kwargs.keys():
            kwargs.setdefault("fused", True)  # one pass over the weights instead of one per operation
    return kwargs
