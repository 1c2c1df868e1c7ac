"""The datapool get_acquainted: dialogues as samples."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import Sample
from rl4dialog.tasks.get_acquainted.datapool import GetAcquainted, generate_dialogues


def samples(split: str = "train", **args: Any) -> list[Sample]:
    return [sample for sample, _ in GetAcquainted.prepare(split, **{"n_train": 30, "n_val": 30, "n_test": 30, **args})]


def test_sizes_are_those_promised() -> None:
    assert [len(GetAcquainted.prepare(split)) for split in ("train", "val", "test")] == [3000, 300, 300]


def test_samples_are_whole_dialogues() -> None:
    for sample, dialogue in zip(samples(), generate_dialogues("train", 30), strict=True):
        info = sample.meta_data or {}
        texts = [turn.text for turn in dialogue.turns]
        assert [*info["history"], *sample.references, *info["continuation"]] == texts
        assert sample.prompt_or_input_text == f"{' '.join(info['persona'])}<EOU>{texts[0]} <EOU>"
        assert len(info["persona"]) == len(info["partner_persona"]) == 5 and len(info["goals"]) == 9


def test_a_larger_pool_keeps_the_first_samples_and_splits_differ() -> None:
    assert samples() == samples(n_train=40)[:30]
    assert samples() != samples(seed=1) and samples("val") != samples("test")


def test_conversations_alternate() -> None:
    pool = GetAcquainted.prepare("val", n_val=3, n_turns=2)
    assert [[turn.speaker for turn in dialogue.turns] for dialogue in pool.conversations()] == [[0, 1, 0, 1, 0]] * 3


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(DataError, match="n_turns must be a whole number of at least 1, not 0"):
        GetAcquainted.prepare("train", n_turns=0)
    with pytest.raises(DataError, match="unknown split"):
        GetAcquainted.prepare("dev")
    with pytest.raises(ConfigError, match="n_trains"):
        DataPoolRegistry.check("get_acquainted", {"n_trains": 3})
