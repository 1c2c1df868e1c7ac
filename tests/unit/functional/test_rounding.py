"""Telling signals from rounding."""

import numpy as np
import pytest
import torch

from rl4dialog.functional.rounding import LOG_PROB_RESOLUTION, bounds, is_constant, log_probs_agree, log_probs_differ


@pytest.mark.parametrize("level", [0.0, 1e-9, 0.1, 7.3, 1e6, -1e6])
def test_numbers_that_differ_by_rounding_are_constant_at_any_level(level):
    steps = np.random.default_rng(0).integers(-1, 2, size=1000) * np.spacing(np.float32(level)) * 0.5
    assert is_constant(np.full(1000, level, dtype=np.float32))
    assert is_constant(level + steps) == is_constant(torch.as_tensor(level + steps)) == (level != 0 or not steps.any())


@pytest.mark.parametrize(
    ("one", "other"), [(1000.0, 1000.001), (0.0, 1e-30), (1e-9, 1.00001e-9), (-5.0, -5.00001), (1e-12, -1e-12)]
)
def test_small_differences_that_float32_resolves_are_kept(one, other):
    assert not is_constant(np.array([one] * 999 + [other], dtype=np.float32))


def test_scale_is_what_was_added_up_and_not_what_came_of_it():
    differences = np.random.default_rng(0).normal(scale=1e-5, size=100)  # left over when 1,000 was taken from 1,000
    assert is_constant(differences, np.full(100, 1000.0)) and not is_constant(differences)
    assert not is_constant(np.append(differences, 1.0), np.append(np.full(100, 1000.0), 1.0)), "one stands out"


def test_bounds_of_sets_are_combined_and_nothing_is_constant_with_nan():
    a, b = np.full(5, 2.0), np.full(3, 2.5)
    assert is_constant(a) and is_constant(b) and not is_constant(np.concatenate([a, b]))
    assert max(bounds(a)[0], bounds(b)[0]) > min(bounds(a)[1], bounds(b)[1])
    assert is_constant(np.zeros(0)) and bounds(np.zeros(0)) == (-np.inf, np.inf)
    assert not is_constant(np.array([1.0, np.nan])) and not is_constant(np.array([np.inf, 1.0]))


@pytest.mark.parametrize(("precision", "noise"), [("fp32", 1e-6), ("bf16", 1.5e-2)])
def test_log_probs_of_two_passes_agree_but_for_rounding(precision, noise):
    random = np.random.default_rng(0)
    log_probs = -random.exponential(3.0, size=5000)
    rounded = log_probs + random.normal(scale=noise, size=5000) * np.maximum(1, -log_probs)
    assert log_probs_agree(log_probs, rounded, precision)
    moved = log_probs + 30 * noise * random.normal(size=5000)
    assert not log_probs_agree(log_probs, moved, precision)
    one_moved = log_probs.copy()
    one_moved[17] -= 1000 * noise
    assert not log_probs_agree(log_probs, one_moved, precision), "that is no rounding, however rare"
    assert not log_probs_agree(log_probs, np.append(log_probs[1:], np.nan), precision)
    assert log_probs_agree(np.zeros(0), np.zeros(0), precision)


def test_rounding_is_judged_relative_to_a_nat_or_to_larger_log_probs():
    for level, unit in ((-0.1, 1.0), (-1.5, 1.5), (-20.0, 20.0)):
        log_probs = np.full(1000, level)
        gap = LOG_PROB_RESOLUTION["fp32"] * unit
        for n_moved, factor, agree in ((1000, 0.97, True), (1000, 1.1, False), (1, 9.5, True), (1, 10.5, False)):
            others = log_probs.copy()
            others[:n_moved] += factor * gap
            assert log_probs_agree(log_probs, others, "fp32") == agree, (level, n_moved, factor)
            assert bool(log_probs_differ(torch.tensor(log_probs), torch.tensor(others), "fp32")) != agree
