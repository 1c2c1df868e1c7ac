"""Wordle games of people, from ILQL's file of tweets (Snell et al. 2022, arXiv 2206.11871), refitted with words.

Tweets show only the colours of guesses. ILQL's ``build_human_datastructure.py`` writes one JSON object: ``games`` is a
list of pairs, the day's word and the colours of each guess (``"<b><b><y><y><b>"``), and ``transitions`` maps each
hidden word to colours, and these to the guesses that have them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rl4dialog.core.errors import shown
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.rows import Row

GAME_COLUMNS = ("games", "transitions")
_OPENING = "new word"  # of the partner, as in the task wordle
_COLOURS = re.compile(r"(?:<[gyb]>){5}")
_SOLVED = "<g>" * 5


def game_rows(rows: Iterable[Row], seed: int) -> Iterator[Row]:
    """Yield each game as a line of a conversation log.

    As ILQL does by default, a game gets any hidden word that its colours allow, drawn with equal probability, and for
    each guess any word with its colours; so the same game has the same words in every reading. A game that no word
    allows is left out, as there. Every guess but the hidden word costs 1.

    Args:
        rows: Rows with the columns ``games`` and ``transitions``.
        seed: Random seed of the words.
    """
    for row in rows:
        games, transitions = _checked(row)
        words = sorted(transitions)
        for number, (_, colours) in enumerate(games):
            rng = random.Random(derive_seed(seed, "tweets", number))
            if (word := _hidden_word(colours, transitions, words, rng)) is not None:
                guesses = [rng.choice(transitions[word][each]) for each in colours]
                yield Row(_record(number, word, guesses, colours), f"{row.place}, game {number}")


def _hidden_word(
    colours: list[str], transitions: Mapping[str, Mapping[str, list[str]]], words: list[str], rng: random.Random
) -> str | None:
    left = words.copy()
    while left:
        place = rng.randrange(len(left))
        left[place], left[-1] = left[-1], left[place]
        word = left.pop()
        if all(transitions[word].get(each) for each in colours):
            return word
    return None


def _record(number: int, word: str, guesses: list[str], colours: list[str]) -> dict[str, Any]:
    messages = [{"role": "user", "content": _OPENING}]
    for guess, shown_colours in zip(guesses, colours, strict=True):
        messages += [
            {"role": "assistant", "content": guess},
            {"role": "user", "content": "".join(filter(str.isalpha, shown_colours))},
        ]
    rewards = [0.0 if each == _SOLVED else -1.0 for each in colours]
    return {"id": number, "messages": messages, "rewards": rewards, "meta_data": {"word": word}}


def _checked(row: Row) -> tuple[list[tuple[str, list[str]]], dict[str, dict[str, list[str]]]]:
    games, transitions = row["games"], row["transitions"]
    if not isinstance(games, list) or not isinstance(transitions, dict):
        raise row.error("games must be a list, and transitions an object")
    for number, game in enumerate(games):
        is_pair = isinstance(game, list) and len(game) == 2 and isinstance(game[1], list) and bool(game[1])
        if not is_pair or not all(isinstance(each, str) and _COLOURS.fullmatch(each) for each in game[1]):
            raise row.error(
                f"game {number} must be a pair of a word and the colours of its guesses, such as "
                f"['panic', ['<b><b><y><y><b>']], not {shown(game)}"
            )
    for word, of_word in transitions.items():
        if not isinstance(of_word, dict) or not all(map(_is_words, of_word.values())):
            raise row.error(f"transitions of {word!r} must map colours to lists of words, not {shown(of_word)}")
    return games, transitions


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
