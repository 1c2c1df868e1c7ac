"""Numbers of the environments' infos in the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.rollouts.statistics import InfoNumbers, numbers_in

INFO: dict[str, Any] = {
    "utterance_truncated": True,
    "speed": np.float32(2.5),
    "sample_id": "a",
    "reward_parts": {"words": np.zeros(2)},
    "hopeless": float("nan"),
    "meta_info": {"act": 3, "speed": 9.0, "history": ["x"]},
}


def test_numbers_of_an_info_hide_those_of_its_meta_info() -> None:
    assert numbers_in(INFO) == {"utterance_truncated": 1.0, "speed": 2.5, "act": 3.0}
    assert numbers_in({"reward_parts": {}}) == {}


def test_named_numbers_are_gathered_where_they_are() -> None:
    numbers, series = InfoNumbers(["act", "late"]), {"rollout/info/act": [], "rollout/info/late": []}
    numbers.add([INFO, {"late": 0, "meta_info": None}], series)
    assert series == {"rollout/info/act": [3.0], "rollout/info/late": [0.0]}
    numbers.check({"rollout/info/act": 3.0, "rollout/info/late": 0.0}, iteration=1)


def test_unknown_name_is_told_after_the_first_iteration_only() -> None:
    numbers = InfoNumbers(["sped"])
    numbers.add([INFO], {})
    with pytest.raises(ConfigError, match=r"'sped'; did you mean 'speed'\? \(they have: act, speed, utterance"):
        numbers.check({}, iteration=1)
    numbers.check({}, iteration=2)


def test_resumed_run_is_not_ended_by_a_name_that_its_first_iteration_lacks() -> None:
    InfoNumbers(["rare"]).check({}, iteration=7)
