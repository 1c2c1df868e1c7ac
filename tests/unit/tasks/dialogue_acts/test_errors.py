"""Semantic errors: their rate, their kinds, and what is always understood."""

from __future__ import annotations

import numpy as np
import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors

VALUES = {"restaurant": {"food": ("thai", "greek", "indian"), "area": ("north",)}}
REQUESTS = {"restaurant": ("phone", "address")}
THAI = DialogueAct("inform", "restaurant", "food", "thai")
NORTH = DialogueAct("inform", "restaurant", "area", "north")
PHONE = DialogueAct("request", "restaurant", "phone")
BYE = DialogueAct("bye", "general")


def heard(act: DialogueAct, rate: float, n: int = 4000) -> list[list[DialogueAct]]:
    errors, rng = SemanticErrors(rate, VALUES, REQUESTS), np.random.default_rng(0)
    return [errors.understood([act], rng) for _ in range(n)]


def test_share_of_misunderstood_acts_is_the_rate_and_half_of_them_are_lost() -> None:
    found = heard(THAI, 0.2)
    assert np.mean([acts != [THAI] for acts in found]) == pytest.approx(0.2, abs=0.025)
    assert np.mean([not acts for acts in found]) == pytest.approx(0.1, abs=0.02)
    changed = {acts[0] for acts in found if acts and acts != [THAI]}
    assert changed == {THAI._replace(value="greek"), THAI._replace(value="indian")}


def test_request_becomes_another_request() -> None:
    changed = {acts[0] for acts in heard(PHONE, 0.5) if acts and acts != [PHONE]}
    assert changed == {PHONE._replace(slot="address")}


def test_act_without_another_value_is_lost() -> None:
    assert {tuple(acts) for acts in heard(NORTH, 0.5)} == {(NORTH,), ()}


def test_goodbye_is_always_understood_and_rate_0_draws_nothing() -> None:
    assert all(acts == [BYE] for acts in heard(BYE, 1.0, 100))
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert SemanticErrors(0.0, VALUES, REQUESTS).understood([THAI, PHONE], rng) == [THAI, PHONE]
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate must be between 0 and 1"):
        SemanticErrors(rate, VALUES, REQUESTS)
