"""Check of the weights that ``from_pretrained`` found; it fills missing ones with random numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rl4dialog.core.errors import ModelError

_logger = logging.getLogger(__name__)


def check_weights(model: Any, info: Mapping[str, Any], name: str, new_head: bool = False) -> None:
    """Check that a model's files have all of its weights, as finite numbers. Warn of weights that it does not use.

    Args:
        model: A model of transformers.
        info: What ``from_pretrained(..., output_loading_info=True)`` returned with it.
        name: The model's name, for the warning.
        new_head: Whether head and pooler may be missing or of another size, because they are trained or not used.

    Raises:
        ModelError: If weights are missing, NaN or infinite.
    """
    # With ignore_mismatched_sizes, weights of another size are random too: (name, size in the file, size in the model).
    absent = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
    if missing := [key for key in absent if not (new_head and _is_beyond_body(model, key))]:
        raise ModelError(
            f"weights are missing from its files, or have another size there ({_some(missing)}); the files are damaged "
            f"or incomplete, or config.json belongs to another model"
        )
    if broken := [key for key, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise ModelError(f"weights are NaN or infinite ({_some(broken)}); the model diverged or its files are damaged")
    if info["unexpected_keys"] and not new_head:
        _logger.warning(
            "%r: its files have weights that a %s with its config.json does not use (%s)",
            *(name, type(model).__name__, _some(info["unexpected_keys"])),
        )


def _is_beyond_body(model: Any, key: str) -> bool:
    """Whether a weight belongs to the head or the pooler."""
    has_head = model.base_model is not model
    return "pooler" in key or (has_head and not key.startswith(f"{model.base_model_prefix}."))


def _some(keys: Iterable[str]) -> str:
    first, *others = sorted(keys)
    return f"{first} and {len(others)} more" if others else first
