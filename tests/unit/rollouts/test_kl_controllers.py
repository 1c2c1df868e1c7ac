"""The controllers against values worked out by hand."""

import json

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.rollouts.kl_controllers import (
    AdaptiveKLController,
    FixedKLController,
    ZieglerKLController,
    build_kl_controller,
)


def after(controller, *kls, n_tokens=1000):
    for kl in kls:
        controller.step(kl, n_tokens)
    return controller.coeff


def test_fixed_never_moves():
    assert after(FixedKLController(0.2), 0.0, 5.0, -1.0) == 0.2


def test_adaptive_moves_by_at_most_two_percent_per_iteration():
    # error (0.55 - 0.5) / 0.5 = 0.1, times 0.1
    assert after(AdaptiveKLController(0.2, 0.5), 0.55) == pytest.approx(0.2 * 1.01)
    assert after(AdaptiveKLController(0.2, 0.5), 50.0) == pytest.approx(0.2 * 1.02)
    assert after(AdaptiveKLController(0.2, 0.5), 0.0) == pytest.approx(0.2 * 0.98)
    assert after(AdaptiveKLController(0.2, 0.5), 0.55, 0.45) == pytest.approx(0.2 * 1.01 * 0.99)


def test_ziegler_moves_in_proportion_to_tokens():
    # error 0.1, 1,000 of 10,000 tokens
    assert after(ZieglerKLController(0.2, 0.5, 10_000), 0.55) == pytest.approx(0.2 * 1.01)
    assert after(ZieglerKLController(0.2, 0.5, 10_000), 50.0, n_tokens=10_000) == pytest.approx(0.2 * 1.2)
    assert after(ZieglerKLController(0.2, 0.5, 20_000), 0.0) == pytest.approx(0.2 * (1 - 0.2 / 20))


@pytest.mark.parametrize("kind", ["fixed", "adaptive", "ziegler"])
def test_state_survives_a_save(kind):
    target = None if kind == "fixed" else 0.1
    one, other = (build_kl_controller(0.3, target, kind) for _ in range(2))
    after(one, 0.4, 0.2)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.coeff == one.coeff
    assert after(one, 0.05) == after(other, 0.05)


@pytest.mark.parametrize(
    "arguments, word",
    [
        *(((0.1, 0.5, "fixed"), "fixed has none"), ((0.1, None, "adaptive"), "need a positive one")),
        *(((0.1, 0.0, "adaptive"), "target_kl: 0.0"), ((0.1, -0.1, "ziegler"), "target_kl: -0.1")),
        ((0.1, 0.5, "none"), "'none'"),
    ],
)
def test_type_and_target_that_do_not_go_together(arguments, word):
    with pytest.raises(ConfigError, match=word):
        build_kl_controller(*arguments)


@pytest.mark.parametrize("make", [AdaptiveKLController, ZieglerKLController])
@pytest.mark.parametrize("kl", [0.0, -3.0, 1e9, float("inf"), float("nan")])
def test_one_iteration_changes_the_coefficient_by_a_fifth_at_most_and_never_its_sign(make, kl):
    controller = make(0.2, 0.1)
    for _ in range(5000):
        before = controller.coeff
        controller.step(kl, n_tokens=60_000)
        assert 0 <= controller.coeff < float("inf")
        assert controller.coeff < 1e-300 or controller.coeff == pytest.approx(before, rel=0.2 + 1e-9)
    assert kl == kl or controller.coeff == 0.2, "nothing is learned from a KL that is not a number"


def test_what_is_built_has_what_was_asked_for():
    ziegler = build_kl_controller(0.1, 0.5, "ziegler")
    assert isinstance(ziegler, ZieglerKLController)
    assert (ziegler.coeff, ziegler.target_kl, ziegler.horizon) == (0.1, 0.5, 10_000)
    other = build_kl_controller(0.1, 0.5, "ziegler", 700)
    assert isinstance(other, ZieglerKLController) and other.horizon == 700
    adaptive = build_kl_controller(0.2, 0.3, "adaptive")
    assert isinstance(adaptive, AdaptiveKLController) and (adaptive.coeff, adaptive.target_kl) == (0.2, 0.3)
    fixed = build_kl_controller(0.4, type="fixed")
    assert isinstance(fixed, FixedKLController) and fixed.coeff == 0.4
