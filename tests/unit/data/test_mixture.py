"""Samples of several datapools by share."""

import json
import logging
from collections import Counter

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.data.mixture import Mixture, checked_pools
from rl4dialog.training.building.texts import build_pool

SMALL_TALK = {"id": "small_talk", "args": {"n_train": 4, "n_val": 4, "n_test": 4, "max_size": 6}, "share": 1}


def talks(folder, share=1):
    """A datapool of files: six conversations for training, and three for each other split."""
    for split, n in (("train", 6), ("val", 3), ("test", 3)):
        said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        (folder / f"{split}.jsonl").write_text(f"{json.dumps({'messages': said})}\n" * n)
    return {"id": "conversational", "args": {"path": str(folder)}, "share": share}


def mixture(split, *pools, **args):
    return Mixture.prepare(split, list(pools), build_pool=build_pool, **args)


def counts(pool):
    return Counter((sample.meta_data or {})["pool"] for sample, _ in pool)


def test_smaller_pool_is_repeated_until_the_shares_hold(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rl4dialog")
    pool = mixture("train", talks(tmp_path, 3), SMALL_TALK)
    assert counts(pool) == {"conversational": 18, "small_talk": 6}
    assert set(Counter(s.id for s, _ in pool if "conversational" in str(s.id)).values()) == {3}
    assert "mixture: 18 samples of conversational, which has 6 (repeated)" in caplog.text
    assert pool.end_of_turn == "<EOU>" and pool.dialogue_format is not None


def test_size_cuts_pools_and_the_order_is_mixed_by_seed(tmp_path):
    pool, other = (mixture("train", talks(tmp_path), SMALL_TALK, size=8, seed=seed) for seed in (0, 1))
    assert counts(pool) == counts(other) == {"conversational": 4, "small_talk": 4}
    names = [(s.meta_data or {})["pool"] for s, _ in pool]
    assert names != sorted(names) and names != [(s.meta_data or {})["pool"] for s, _ in other]


def test_val_has_all_samples_of_all_pools_whose_formats_are_equal(tmp_path):
    assert counts(mixture("val", talks(tmp_path, 5), SMALL_TALK)) == {"conversational": 3, "small_talk": 6}
    plain = {"id": "dummy_pool", "args": {"prompt": "a"}, "share": 1}
    with pytest.raises(DataError, match="need the same dialogue format, not dummy_pool: none, small_talk: eou"):
        mixture("train", plain, SMALL_TALK)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([], "pools: list should have at least 1 item"),
        ([{"id": "a", "share": 0}], r"pools\[0\]\.share: input should be greater than 0, got 0"),
        ([{"id": "a"}], r"pools\[0\]: the key 'share' is missing"),
        ([{"id": "a", "share": 1, "arg": {}}], r"pools\[0\]\.arg: unknown key; did you mean 'args'"),
        ([{"share": 1}], r"pools\[0\]: the key 'id' is missing"),
    ],
)
def test_malformed_entries_are_errors(pools, message):
    with pytest.raises(ConfigError, match=message):
        DataPoolRegistry.check("mixture", {"pools": pools})


def test_equal_ids_get_numbers():
    pools = [{"id": "a", "share": 1}, {"id": "b", "share": 1}, {"id": "a", "share": 2}]
    assert [part.name for part in checked_pools(pools)] == ["a_0", "b", "a_2"]
