"""Types of stable-baselines3's own arguments."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from rl4dialog.algorithms.on_policy.rollout_mixin import OnPolicyArguments

DEVICE = TypeAdapter(OnPolicyArguments.__annotations__["device"], config={"arbitrary_types_allowed": True})


@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0"])
def test_device_of_this_machine_is_taken(name: str) -> None:
    assert DEVICE.validate_python(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [("cpu:1", "a device of this machine"), ("cuda:99", "a device of this machine"), ("gpu", "mps")],
)
def test_other_devices_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DEVICE.validate_python(name)


def test_mps_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there in (True, False):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=is_there: there)
        if is_there:
            assert DEVICE.validate_python("mps") == "mps"
        else:
            with pytest.raises(ValidationError, match="a device of this machine"):
                DEVICE.validate_python("mps")
