"""Products of settings: the quick tests run a few combinations that have every value, and the long ones all others."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import pytest


def covering(*axes: Collection[Any], now: Collection[Any]) -> list[Any]:
    """All combinations, or the values of a single axis; those that are not in ``now`` take long."""
    combinations = list(axes[0]) if len(axes) == 1 else list(itertools.product(*axes))
    assert all(each in combinations for each in now)
    for i, axis in enumerate(axes if len(axes) > 1 else ()):
        assert all(any(each[i] == value for each in now) for value in axis), "each value once"
    return [
        each if each in now else pytest.param(*(each if len(axes) > 1 else [each]), marks=pytest.mark.long)
        for each in combinations
    ]
