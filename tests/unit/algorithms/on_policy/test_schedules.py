"""Schedules over the progress of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.algorithms.schedules import as_schedule
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"start": 2.0}, [2.0, 1.5, 1.0, 0.0]),
        ({"start": 2.0, "end": 1.0}, [2.0, 1.75, 1.5, 1.0]),
        ({"start": 2.0, "schedule": "cosine"}, [2.0, 1 + math.cos(math.pi / 4), 1.0, 0.0]),
        ({"start": 2.0, "schedule": "constant"}, [2.0] * 4),
        ({"start": 2.0, "warmup": 0.5}, [0.0, 1.0, 2.0, 0.0]),
        ({"start": 2.0, "schedule": "constant", "warmup": 0.5}, [0.0, 1.0, 2.0, 2.0]),
        ({"start": 2.0, "end": 1.0, "schedule": "cosine", "warmup": 0.25}, [0.0, 2.0, 1.75, 1.0]),
    ],
)
def test_values_follow_the_progress(settings: dict[str, Any], expected: list[float]) -> None:
    value = as_schedule(settings, "learning_rate")
    assert [value(1 - done) for done in (0, 0.25, 0.5, 1)] == pytest.approx(expected)


def test_numbers_and_functions_stay_as_they_are() -> None:
    assert as_schedule(0.1, "learning_rate") == 0.1 and as_schedule(math.sqrt, "clip_range") is math.sqrt


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", {"start": 1e-4, "end": 1e-3}, r"learning_rate\.end is 0\.001, above start = 0\.0001"),
        (
            "learning_rate",
            {"start": 1e-4, "end": 0.0, "schedule": "constant"},
            r"learning_rate\.end has no effect with",
        ),
        ("learning_rate", {"end": 1e-3}, r"alg\.args\.learning_rate"),
        ("learning_rate", {"start": 1e-4, "warm_up": 0.1}, r"alg\.args\.learning_rate"),
        ("learning_rate", {"start": 1e-4, "warmup": 1.0}, r"alg\.args\.learning_rate"),
        ("clip_range", {"start": 0.2}, r"clip_range cannot have end: 0, where every ratio is clipped"),
        (
            "clip_range",
            {"start": 0.2, "end": 0.1, "warmup": 0.1},
            r"clip_range cannot have warmup: it would begin at 0",
        ),
        ("clip_range_high", {"start": 0.3, "end": 0.1}, r"clip_range_high is 0\.1, below alg\.args\.clip_range = 0\.2"),
        ("ent_coef", {"start": 0.3, "end": 0.1}, r"alg\.args\.ent_coef"),
    ],
)
def test_schedules_without_meaning_are_refused(tmp_path: Path, name: str, value: Any, words: str) -> None:
    config = make_config(tmp_path, **{f"alg__args__{name}": value})
    with pytest.raises(ConfigError, match=words) as error:
        check_components(parse_config(config, "test"))
    print(error.value)


def test_config_accepts_schedules(tmp_path: Path) -> None:
    args = {
        "learning_rate": {"start": 1e-4, "end": 0, "schedule": "cosine", "warmup": 0.1},
        "clip_range": {"start": 0.2, "end": 0.1},
        "clip_range_high": {"start": 0.3, "end": 0.1, "schedule": "linear"},
        "clip_range_vf": {"start": 5, "schedule": "constant"},
    }
    check_components(parse_config(make_config(tmp_path, **{f"alg__args__{k}": v for k, v in args.items()}), "test"))
