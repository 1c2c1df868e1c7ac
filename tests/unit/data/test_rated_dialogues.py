"""The datapool of human ratings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from rated import conversation, write_lines

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.rated_dialogues import RatedDialogues


def replies_file(folder: Path, n: int = 12) -> Path:
    """Conversations with two rated replies each: ``good`` is 1 to 5, ``kind`` is missing in each first reply."""
    rows = []
    for i in range(n):
        row = conversation(f"a {i}", f"b {i}", "c", f"d {i} d")
        row["messages"][1]["ratings"] = {"good": 1 + i % 5}
        row["messages"][3]["ratings"] = {"good": 5 - i % 5, "kind": i % 2}
        rows.append(row)
    return write_lines(folder / "ratings.jsonl", rows)


def meta(pool: RatedDialogues) -> list[dict[str, Any]]:
    return [sample.meta_data or {} for sample, _ in pool]


def test_rating_is_scaled_and_text_ends_with_the_reply(tmp_path: Path) -> None:
    pool = RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings="good", context_size=1, scale=(0, 10))
    for sample, _ in pool:
        info = sample.meta_data or {}
        assert info["rating"] == info["ratings"]["good"] / 10
        assert sample.prompt_or_input_text.count("\n") == 1
        assert info["n_words"] == len(sample.prompt_or_input_text.split("Assistant: ")[1].split())
    assert (pool.unit, pool.ratings, pool.scale, pool.context_size) == ("reply", ("good",), (0, 10), 1)


def test_splits_share_no_conversation_and_lose_nothing(tmp_path: Path) -> None:
    path = str(replies_file(tmp_path))
    pools = [RatedDialogues.prepare(split, path, ratings="good") for split in SPLITS]
    parts = [{info["conversation"] for info in meta(pool)} for pool in pools]
    assert [len(part) for part in parts] == [6, 3, 3]
    assert set.union(*parts) == set(range(12)) and sum(map(len, pools)) == 24
    again = RatedDialogues.prepare("val", path, ratings="good", split_seed=1)
    assert {info["conversation"] for info in meta(again)} != parts[1]


def test_default_scale_is_the_range_in_train_for_all_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rl4dialog")
    path = str(replies_file(tmp_path))
    pools = [RatedDialogues.prepare(split, path, ratings="good") for split in SPLITS]
    ratings = [info["rating"] for info in meta(pools[0])]
    assert (min(ratings), max(ratings)) == (0, 1)
    assert pools[0].scale == pools[1].scale == pools[2].scale
    assert caplog.text.count("become 0 to 1") == 1


def test_gaps_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings=["kind", "good"], scale=(0, 5))
    assert "12 of 24 replies lack one and are left out" in caplog.text
    assert all(info["rating"] == (info["ratings"]["kind"] + info["ratings"]["good"]) / 10 for info in meta(pool))
    assert pool.ratings == ("good", "kind")


def test_generated_dialogues_are_rated_by_the_rule() -> None:
    replies = RatedDialogues.prepare("test", dataset="small_talk", unit="reply")
    dialogues = RatedDialogues.prepare("test", dataset="small_talk", unit="dialogue")
    found: dict[bool, set[float]] = {True: set(), False: set()}
    for sample, _ in replies:
        asks = "?" in sample.prompt_or_input_text.rsplit("\n", 1)[1]
        found[asks].add((sample.meta_data or {})["ratings"]["interest"])
    assert found == {True: {3, 4, 5}, False: {1, 2, 3}}
    assert {info["conversation"] for info in meta(dialogues)} == {info["conversation"] for info in meta(replies)}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"ratings": "god"}, "no rating 'god'; did you mean 'good'"),
        ({}, "choose one or several of good, kind"),
        ({"ratings": "good", "dataset": "dstc9"}, "set either path, to a ratings file, or dataset"),
        ({"ratings": "good", "scale": (5, 1)}, "the lowest and the highest rating, not"),
    ],
)
def test_contradicting_arguments_are_errors(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RatedDialogues.prepare("train", str(replies_file(tmp_path)), **args)


def test_rating_outside_of_the_scale_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the rating 5 of '.*' is not in scale \[1, 4\]"):
        RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings="good", scale=(1, 4))


def test_too_few_conversations_for_the_splits_are_an_error(tmp_path: Path) -> None:
    path = str(replies_file(tmp_path, n=2))
    with pytest.raises(
        DataError, match=r"of 2 judged conversations, held_out_share 0.25 leaves none for split 'val'; at"
    ):
        RatedDialogues.prepare("val", path, ratings="good")


def test_constant_ratings_are_an_error(tmp_path: Path) -> None:
    rows = [conversation("a", "b", ratings={"good": 3}) for _ in range(8)]
    with pytest.raises(DataError, match="the rating is always 3 in split 'train'"):
        RatedDialogues.prepare("train", str(write_lines(tmp_path / "r.jsonl", rows)))
    with pytest.raises(ConfigError, match="context_size has no meaning with dialogues"):
        RatedDialogues.prepare("train", str(tmp_path / "r.jsonl"), context_size=2)
