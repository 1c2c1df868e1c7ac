"""Excerpts of rated conversations: all of one length, and no conversation in two files."""

import json

import pytest
from rating_excerpts import main, write_excerpts

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn
from rl4dialog.data.ratings import load_ratings

FILES = ("reward", "held_out", "val", "test")


def rated(id, n_utterances, *ratings):
    turns = tuple(Turn(f"{id} {i}", AGENT if i % 2 else PARTNER) for i in range(n_utterances))
    return RatedDialogue(Dialogue(id, turns), {f"rating {i}": value for i, value in enumerate(ratings)}, id)


def rows(folder):
    return {name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in FILES}


def test_excerpts_have_one_length_and_start_with_the_user(tmp_path):
    counts = write_excerpts([rated(id, 8, 2, 4) for id in range(40)], tmp_path, 3)
    found = rows(tmp_path)
    assert counts == {name: len(found[name]) for name in FILES}
    assert sum(counts.values()) == 40 * 2
    for row in [row for name in FILES for row in found[name]]:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user"]
        assert row["ratings"] == {"rating 0": 2, "rating 1": 4, "mean": 3}
    first, second = (row for row in found["reward"] if row["id"] == found["reward"][0]["id"])
    assert [message["content"][-1] for message in first["messages"] + second["messages"]] == list("012456")


def test_no_conversation_is_in_two_files(tmp_path):
    write_excerpts([rated(id, 8, 1) for id in range(40)], tmp_path, 3)
    ids = [{row["id"] for row in rows(tmp_path)[name]} for name in FILES]
    assert sum(map(len, ids)) == len(set.union(*ids)) == 40
    assert [len(each) for each in ids] == [18, 18, 2, 2]


def test_ratings_of_too_short_dialogues_are_not_exported(tmp_path):
    with pytest.raises(DataError, match=r"2 of 10 rated dialogues have at least 5 utterances, .*val, test would be"):
        write_excerpts([rated(id, 5 if id < 2 else 4, 1) for id in range(10)], tmp_path, 5)
    write_excerpts([rated(id, 4, 5, 5 if id < 4 else 6) for id in range(20)], tmp_path, 4, default_rating=5)
    found = rows(tmp_path)
    assert {row["id"] for name in ("val", "test") for row in found[name]} == {0, 1, 2, 3}
    assert {row["ratings"]["mean"] for name in ("reward", "held_out") for row in found[name]} == {5.5}


def test_the_script_writes_ratings_files(tmp_path, capsys):
    arguments = ["--ratings", "small_talk", "--output_dir", str(tmp_path)]
    main([*arguments, "--n_utterances", "4"])
    unit, found = load_ratings(tmp_path / "reward.jsonl")
    assert unit == "dialogue" and f"reward.jsonl: {len(found)} excerpts" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--n_utterances must be at least 2, not 1"):
        main([*arguments, "--n_utterances", "1"])
