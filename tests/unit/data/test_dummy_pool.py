"""The datapool of one prompt."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.dummy_pool import DummyPool


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_split_repeats_the_prompt(split: str) -> None:
    pool = DummyPool.prepare(split, prompt="count:", n_samples=7)
    assert len(pool) == 7
    assert all(sample.prompt_or_input_text == "count:" and sample.references == [""] for sample, _ in pool)
    assert len({sample.id for sample, _ in pool}) == 7
    assert pool.end_of_turn is None


def test_default_size_is_100() -> None:
    assert len(DummyPool.prepare("train", "x")) == 100


def test_unknown_split_is_an_error() -> None:
    with pytest.raises(DataError, match="unknown split 'validation'"):
        DummyPool.prepare("validation", "x")
