"""What a run knows of its samples."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.data.run_data import Data


def pool(*infos: dict[str, Any] | None) -> TextGenPool:
    return TextGenPool([Sample(i, "", [], info) for i, info in enumerate(infos)])


def test_personas_are_those_of_the_train_split_each_once() -> None:
    train = pool({"persona": ["a", "b"]}, None, {"persona": ["c"]}, {"persona": ["a", "b"]}, {"persona": "d"}, {})
    data = Data({"train": train, "val": pool({"persona": ["e"]})}, None)
    assert data.personas("persona") == [("a", "b"), ("c",)] and data.personas("partner_persona") == []
