"""Numbers in no order, the same for the same seed."""

from __future__ import annotations

from rl4dialog.data.random_numbers import RandomNumbers
from rl4dialog.scores.rules import increasing_numbers_score


def references(split: str, **args: int) -> list[str]:
    return [sample.references[0] for sample, _ in RandomNumbers.prepare(split, n_samples=50, **args)]


def test_each_reference_is_so_many_numbers_and_far_from_increasing() -> None:
    train = references("train", n_numbers=8, largest=20)
    assert {len(text.split()) for text in train} == {8}
    assert {int(word) for text in train for word in text.split()} <= set(range(21))
    scores = [increasing_numbers_score(text, 8) for text in train]
    assert sum(scores) / len(scores) < 0.4


def test_splits_and_seeds_differ_and_the_same_seed_does_not() -> None:
    assert references("train") == references("train")
    assert references("train") != references("val")
    assert references("train") != references("train", seed=1)
