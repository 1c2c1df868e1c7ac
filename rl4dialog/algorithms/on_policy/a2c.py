"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783) over whole replies."""

from __future__ import annotations

import stable_baselines3

from rl4dialog.algorithms.on_policy.rollout_mixin import LMRolloutMixin


class A2C(LMRolloutMixin, stable_baselines3.A2C):  # type: ignore[misc]
    """stable-baselines3's A2C: one optimizer step per iteration, on all replies at once."""
