"""Games of ILQL's tweets, refitted with words."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.conversations.tweets import game_rows
from rl4dialog.data.rows import Row

MISS, NEAR, HIT = "<b><b><b><b><b>", "<y><b><b><b><g>", "<g><g><g><g><g>"
TRANSITIONS = {
    "crane": {MISS: ["build", "ghost"], HIT: ["crane"]},
    "slate": {MISS: ["build"], NEAR: ["elude"], HIT: ["slate"]},
}


def games(found: list[Any], seed: int = 0, transitions: Any = TRANSITIONS) -> list[dict[str, Any]]:
    return [dict(row.values) for row in game_rows([Row({"games": found, "transitions": transitions}, "t.json")], seed)]


def test_guesses_have_the_colours_of_the_tweet() -> None:
    (game,) = games([["panic", [MISS, NEAR, HIT]]])
    assert game["meta_data"] == {"word": "slate"}, "no other hidden word allows these colours"
    texts = [message["content"] for message in game["messages"]]
    assert texts == ["new word", "build", "bbbbb", "elude", "ybbbg", "slate", "ggggg"]
    assert [message["role"] for message in game["messages"]] == ["user", *["assistant", "user"] * 3]
    assert game["rewards"] == [-1.0, -1.0, 0.0]


def test_words_are_drawn_by_seed_with_equal_probability() -> None:
    many = [["panic", [MISS, HIT]]] * 400
    found = games(many)
    assert found == games(many) != games(many, seed=1)
    words = Counter(game["meta_data"]["word"] for game in found)
    assert 160 < words["crane"] < 240
    firsts = Counter(game["messages"][1]["content"] for game in found if game["meta_data"]["word"] == "crane")
    assert set(firsts) == {"build", "ghost"} and abs(firsts["build"] - firsts["ghost"]) < 60


def test_impossible_game_is_left_out_and_the_others_keep_their_numbers() -> None:
    found = games([["panic", [MISS]], ["panic", ["<g><b><b><b><b>"]], ["panic", [HIT]]])
    assert [game["id"] for game in found] == [0, 2]


@pytest.mark.parametrize(
    ("found", "transitions", "message"),
    [
        ({}, TRANSITIONS, "games must be a list, and transitions an object"),
        ([["panic"]], TRANSITIONS, "game 0 must be a pair of a word and the colours of its guesses"),
        ([["panic", ["bbbbb"]]], TRANSITIONS, "game 0 must be a pair"),
        ([["panic", []]], TRANSITIONS, "game 0 must be a pair"),
        ([], {"crane": ["a"]}, "transitions of 'crane' must map colours to lists of words"),
        ([], {"crane": {HIT: "crane"}}, "transitions of 'crane' must map colours to lists of words"),
    ],
)
def test_wrong_file_is_named(found: Any, transitions: Any, message: str) -> None:
    with pytest.raises(DataError, match=r"t\.json: ") as error:
        games(found, transitions=transitions)
    assert message in str(error.value)
