"""Optimizers by the names that a config can give them."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rl4dialog.core.errors import ConfigError, nearest_hint

OPTIMIZERS = {
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adam_8bit": "bitsandbytes.optim:Adam8bit",
    "adamw_8bit": "bitsandbytes.optim:AdamW8bit",
}
"""The 8-bit forms keep Adam's moments in a quarter of the memory (Dettmers et al. 2021, arXiv 2110.02861)."""


def optimizer_class(name: str | type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class behind a name; a class is itself.

    Raises:
        ConfigError: If there is no such name, or its package is not installed.
    """
    if isinstance(name, type):
        return name
    if name not in OPTIMIZERS:
        raise ConfigError(
            f"alg.policy.args.optimizer_class: unknown {name!r}{nearest_hint(str(name), OPTIMIZERS)} "
            f"(known: {', '.join(OPTIMIZERS)})"
        )
    module, _, attribute = OPTIMIZERS[name].partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(
            f"alg.policy.args.optimizer_class: {name} needs the package bitsandbytes: pip install 'rl4dialog[8bit]'"
        ) from error
    return found  # type: ignore[no-any-return]
