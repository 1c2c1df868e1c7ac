"""State of the random number generators of a process (Python, numpy, torch and its GPUs) in serializable form."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rl4dialog.core.files import to_plain

_logger = logging.getLogger(__name__)


def random_state() -> dict[str, Any]:
    """Return the state that :func:`set_random_state` restores."""
    version, python, gauss = random.getstate()
    return {
        "python": [version, list(python), gauss],
        "numpy": to_plain(np.random.get_state(legacy=False)),
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in torch.cuda.get_rng_state_all()],
        **({"mps": _text(torch.mps.get_rng_state())} if torch.backends.mps.is_available() else {}),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a state returned by :func:`random_state`. Warns if there are fewer GPUs now."""
    version, python, gauss = state["python"]
    random.setstate((version, tuple(python), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(_tensor(state["torch"]))
    states, n_devices = state["cuda"], torch.cuda.device_count()
    if len(states) > n_devices:
        text = "the checkpoint has the random states of %d GPUs, but there are %d now: random numbers will differ"
        _logger.warning(text, len(states), n_devices)
    for device, text in enumerate(states[:n_devices]):
        torch.cuda.set_rng_state(_tensor(text), device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(_tensor(state["mps"]))


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of Python, numpy and torch (including all GPUs) on exit."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def _text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
