"""Controllers of the KL coefficient, the penalty per nat of divergence from the reference."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError

_MOST = 0.2  # largest relative error that counts, and largest relative change of a coefficient per iteration


class KLController(ABC):
    """Base class that holds the coefficient. The state includes everything that affects later coefficients.

    Args:
        coeff: Initial penalty per nat.
    """

    def __init__(self, coeff: float) -> None:
        self.coeff = float(coeff)

    @abstractmethod
    def step(self, kl: float, n_tokens: int) -> None:
        """Update the coefficient after an iteration, given its mean KL per token in nats, and its agent tokens."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict`."""
        return {"coeff": self.coeff}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.coeff = float(state["coeff"])

    def _change_by(self, share: float) -> None:
        """Change the coefficient by a relative amount, at most 20 % up or down. It stays finite and not negative."""
        if math.isfinite(share):
            self.coeff = min(self.coeff * (1 + float(np.clip(share, -_MOST, _MOST))), sys.float_info.max)


class FixedKLController(KLController):
    """The coefficient never changes."""

    def step(self, kl: float, n_tokens: int) -> None:
        pass


class AdaptiveKLController(KLController):
    """Proportional control per iteration, as in RL4LMs and OpenRL.

    coeff <- coeff * (1 + 0.1 * clip((kl - target) / target, -0.2, 0.2)).
    """

    gain = 0.1

    def __init__(self, coeff: float, target_kl: float) -> None:
        super().__init__(coeff)
        self.target_kl = float(target_kl)

    def step(self, kl: float, n_tokens: int) -> None:
        self._change_by(self.gain * float(np.clip((kl - self.target_kl) / self.target_kl, -_MOST, _MOST)))


class ZieglerKLController(KLController):
    """Proportional control with a horizon (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).

    coeff <- coeff * (1 + clip(clip((kl - target) / target, -0.2, 0.2) * n_tokens / horizon, -0.2, 0.2)). The outer clip
    is an addition: without it, an iteration of more than five horizons could make the coefficient negative.

    Args:
        coeff: Initial penalty per nat.
        target_kl: Target mean KL per token, in nats.
        horizon: Number of agent tokens over which the coefficient may change by up to 20 %. This is also the maximum
            change per iteration.
    """

    def __init__(self, coeff: float, target_kl: float, horizon: int = 10_000) -> None:
        super().__init__(coeff)
        self.target_kl, self.horizon = float(target_kl), int(horizon)

    def step(self, kl: float, n_tokens: int) -> None:
        error = float(np.clip((kl - self.target_kl) / self.target_kl, -_MOST, _MOST))
        self._change_by(error * n_tokens / self.horizon)


def build_kl_controller(
    coeff: float, target_kl: float | None = None, type: str | None = None, horizon: int = 10_000
) -> KLController:
    """Build the controller of a ``kl_div`` block; without a type it is adaptive if there is a target, as in RL4LMs."""
    kind = type or ("adaptive" if target_kl is not None else "fixed")
    if kind == "fixed" and target_kl is None:
        return FixedKLController(coeff)
    if target_kl is not None and target_kl > 0 and kind in ("adaptive", "ziegler"):
        is_adaptive = kind == "adaptive"
        return AdaptiveKLController(coeff, target_kl) if is_adaptive else ZieglerKLController(coeff, target_kl, horizon)
    needs = "fixed has none, adaptive and ziegler need a positive one"
    raise ConfigError(f"kl_div.type: {kind!r} does not go with kl_div.target_kl: {target_kl!r}; {needs}")
