"""What TRPO refuses."""

from __future__ import annotations

import pytest

from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.errors import ConfigError


def test_replies_are_not_sampled_from_an_iteration() -> None:
    with pytest.raises(ConfigError, match=r"alg\.args\.sub_sampling_factor is not supported"):
        TRPO.check_arguments({"sub_sampling_factor": 2}, 1)
    TRPO.check_arguments({"sub_sampling_factor": 1}, 1)
    TRPO.check_arguments({}, 1)


def test_arguments_of_all_algorithms_are_checked() -> None:
    with pytest.raises(ConfigError, match="gamma"):
        TRPO.check_arguments({"gamma": 2}, 1)
