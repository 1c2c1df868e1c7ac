"""The datapool interface and its checks."""

from __future__ import annotations

import inspect
import itertools
import random

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split, hub_split, limit_samples


def make_pool(n_samples: int) -> TextGenPool:
    return TextGenPool([Sample(index, f"prompt {index}", [f"reply {index}"]) for index in range(n_samples)])


def test_index_gives_sample_and_weight_one() -> None:
    pool = make_pool(3)
    sample, weight = pool[1]
    assert (sample.id, weight, len(pool)) == (1, 1.0, 3)
    assert pool[-1][0].id == 2


def test_index_past_the_end_raises_index_error() -> None:
    with pytest.raises(IndexError):
        make_pool(3)[3]


def test_iteration_gives_every_sample_once() -> None:
    assert [(sample.id, weight) for sample, weight in make_pool(3)] == [(0, 1.0), (1, 1.0), (2, 1.0)]


def test_sample_follows_the_global_seed_and_reaches_all() -> None:
    pool = make_pool(4)
    random.seed(5)
    first = [pool.sample().id for _ in range(50)]
    random.seed(5)
    assert [pool.sample().id for _ in range(50)] == first
    assert set(first) == {0, 1, 2, 3}


def test_weights_go_with_their_samples() -> None:
    pool = TextGenPool([Sample(index, "", [""]) for index in range(4)], [1, 2, 0.001, 3])
    assert pool[1][1] == 2.0
    assert [weight for _, weight in pool.split([0.5, 0.5])[1]] == [0.001, 3.0]
    random.seed(0)
    drawn = [pool.sample().id for _ in range(600)]
    assert drawn.count(2) < 10 < drawn.count(0) < drawn.count(1) < drawn.count(3)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_must_be_positive_and_as_many_as_samples(weights: list[float]) -> None:
    with pytest.raises(DataError, match="2 samples need as many positive weights"):
        TextGenPool([Sample(0, "", [""]), Sample(1, "", [""])], weights)


@pytest.mark.parametrize("ratios, sizes", [([0.8, 0.2], [8, 2]), ([1 / 3, 1 / 3, 1 / 3], [3, 4, 3]), ([0.5], [5])])
def test_split_cuts_consecutive_parts_without_losing_samples(ratios: list[float], sizes: list[int]) -> None:
    parts = make_pool(10).split(ratios)
    assert [len(part) for part in parts] == sizes
    assert [sample.id for part in parts for sample, _ in part] == list(range(sum(sizes)))


def test_split_keeps_class_and_end_of_turn() -> None:
    class Mine(TextGenPool):
        pass

    pool = Mine([Sample(0, "a", ["b"]), Sample(1, "a", ["b"])])
    pool.end_of_turn = "<EOU>"
    parts = pool.split([0.5, 0.5])
    assert all(type(part) is Mine and part.end_of_turn == "<EOU>" for part in parts)


@pytest.mark.parametrize("ratios", [[0.7, 0.7], [-0.1, 0.5]])
def test_split_refuses_impossible_ratios(ratios: list[float]) -> None:
    with pytest.raises(DataError, match="sum to at most 1"):
        make_pool(10).split(ratios)


def test_base_class_cannot_prepare() -> None:
    with pytest.raises(NotImplementedError):
        TextGenPool.prepare("train")


def test_hub_split_names_val_validation() -> None:
    assert [hub_split(split) for split in ("train", "val", "test")] == ["train", "validation", "test"]


@pytest.mark.parametrize("split", ["validation", "dev", "", None])
def test_unknown_split_lists_the_three(split: str) -> None:
    with pytest.raises(DataError, match=r"unknown split .*train, val, test"):
        check_split(split)


def test_unknown_split_names_the_nearest() -> None:
    with pytest.raises(DataError, match="did you mean 'train'"):
        check_split("trian")


def test_empty_split_names_pool_split_and_source() -> None:
    with pytest.raises(DataError, match=r"'daily_dialog' has no samples in split 'val' \(source: some/folder\)"):
        limit_samples([], None, "daily_dialog", "val", "some/folder")


def test_max_size_keeps_the_first_samples() -> None:
    samples = [Sample(index, "", [""]) for index in range(5)]
    endless = (Sample(index, "", [""]) for index in itertools.count())
    assert [sample.id for sample in limit_samples(endless, 2, "p", "train", "s")] == [0, 1]
    assert [sample.id for sample in limit_samples(samples, 2, "p", "train", "s")] == [0, 1]
    assert len(limit_samples(samples, None, "p", "train", "s")) == 5
    assert len(limit_samples(samples, 99, "p", "train", "s")) == 5


@pytest.mark.parametrize("pool_id", DataPoolRegistry.ids())
def test_every_pool_of_the_catalog_takes_a_split(pool_id: str) -> None:
    assert issubclass(DataPoolRegistry.resolve(pool_id), TextGenPool)
    assert "split" in inspect.signature(DataPoolRegistry.resolve(pool_id).prepare).parameters
    arguments = [argument.partition("=")[0] for argument in DataPoolRegistry.describe(pool_id)[1].split(", ")]
    assert "split" not in arguments


@pytest.mark.parametrize("pool_id", ["conversational", "daily_dialog", "persona_chat", "small_talk"])
def test_dialogue_pools_accept_the_injected_chat_renderer(pool_id: str) -> None:
    DataPoolRegistry.check(pool_id, {"format": "chat_template"})
