"""Settings of which the quick tests run a few, each value at least once, and the long ones all."""

import itertools

import pytest


def covering(*axes):
    """All combinations for ``parametrize``; as many of them are quick as the longest axis has values."""
    values = [list(axis) for axis in axes]
    quick = [
        # Two axes of two values each meet in all four ways, if there are four or more.
        tuple(axis[(i + number * (i // len(axis))) % len(axis)] for number, axis in enumerate(values))
        for i in range(max(map(len, values)))
    ]
    return [
        combination if combination in quick else pytest.param(*combination, marks=pytest.mark.long)
        for combination in itertools.product(*values)
    ]


def quick(*values, of):
    """Values for ``parametrize``, of which only these are quick."""
    assert all(value in of for value in values)
    return [value if value in values else pytest.param(value, marks=pytest.mark.long) for value in of]
