from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from rl4dialog.envs.columns import pack, unpack

VALUES: dict[str, list[Any]] = {
    "infos": [
        {"text": "a", "parts": {"x": np.arange(3, dtype=np.float32)}, "observation": {"ids": np.arange(4)}},
        {"text": "b", "parts": {"x": np.arange(1, dtype=np.float32), "y": np.ones(2)}},
    ],
    "steps": [(np.zeros((2, 3)), 0.5, True, {}), (np.ones((2, 3)), 1, False, {"n": None})],
    "shapes": [np.zeros((2, 3)), np.zeros((2, 4))],
    "kinds": [np.zeros(2), np.zeros(2, dtype=np.float32), np.float64(1), [np.zeros(2)]],
    "scalars": [np.array(1), np.array(2)],
    "objects": [np.array(["a", None], dtype=object)] * 2,
    "empty": [(), ()],
    "none": [],
    "lengths": [(1,), (1, 2)],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_arrive_as_they_were(name: str) -> None:
    arrived = unpack(pickle.loads(pickle.dumps(pack(VALUES[name]))))
    np.testing.assert_equal(arrived, VALUES[name])
    assert repr(arrived) == repr(VALUES[name]), "also types of numbers and arrays"


class CountsArrays(pickle.Pickler):
    n = 0

    def persistent_id(self, value: Any) -> None:
        self.n += isinstance(value, np.ndarray)


def test_arrays_under_one_key_travel_as_one() -> None:
    pickler = CountsArrays(io.BytesIO())
    pickler.dump(pack([({"ids": np.zeros(5), "mask": np.ones(5)}, {"parts": {"x": np.zeros(i)}}) for i in range(9)]))
    assert pickler.n == 3
