"""Trials of all combinations."""

from __future__ import annotations

import pytest
from sweeps import result

from rl4dialog.core.errors import ConfigError
from rl4dialog.experiments.sweep.grid import Grid
from rl4dialog.experiments.sweep.space import parse_grid


def test_trials_are_named_by_their_values_and_results_are_in_their_order() -> None:
    grid = Grid(parse_grid(["alg.kl_div.coeff=0.1,0.2", "b=x"]))
    first, second = grid.next(), grid.next()
    assert grid.next() is None and first is not None and second is not None
    assert (first.name, first.values) == ("coeff_0.1_b_x", {"alg.kl_div.coeff": "0.1", "b": '"x"'})
    assert not first.is_new and not grid.report(first, 1, 0.0)
    for trial in (second, first):
        grid.finish(trial, result(trial.name))
    assert [found.name for found in grid.results()] == ["coeff_0.1_b_x", "coeff_0.2_b_x"]


def test_equal_names_are_told() -> None:
    with pytest.raises(ConfigError, match="no distinct, short folder names"):
        Grid(parse_grid(["a=x/y,x:y"]))
