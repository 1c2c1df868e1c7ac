"""Random generators go on from where their state was taken."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from rl4dialog.training.random_state import random_state, set_random_state


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_generators_draw_the_same_again_after_a_trip_through_json() -> None:
    draw()
    text = json.dumps(random_state())
    expected = [draw() for _ in range(3)]
    set_random_state(json.loads(text))
    assert [draw() for _ in range(3)] == expected
