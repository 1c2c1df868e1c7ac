"""Guesses, colours and rewards."""

from __future__ import annotations

import pytest

from rl4dialog.tasks.wordle.rules import NO_WORD, OPENING, SOLVED, colours, read, read_colours, reward, written


@pytest.mark.parametrize(
    ("guess", "word", "simple", "official"),
    [
        ("crane", "crane", SOLVED, SOLVED),
        ("crane", "moist", "bbbbb", "bbbbb"),
        ("slate", "stale", "gygyg", "gygyg"),
        ("speed", "erase", "ybyyb", "ybyyb"),  # two e in both
        ("speed", "abide", "bbyyy", "bbyby"),  # one in the word
        ("geese", "crane", "byybg", "bbbbg"),  # the green one is the only one
        ("llama", "allow", "ygyby", "ygybb"),
        ("allow", "llama", "ygybb", "ygybb"),
        ("mamma", "llama", "yyygg", "bybgg"),
        ("eerie", "there", "yyybg", "ybybg"),
    ],
)
def test_colours_of_repeated_letters(guess: str, word: str, simple: str, official: str) -> None:
    assert colours(guess, word) == colours(guess, word, "simple") == simple
    assert colours(guess, word, "official") == official


@pytest.mark.parametrize("text", ["crane", " crane\n", "zzzzz"])
def test_five_lower_case_letters_are_a_guess(text: str) -> None:
    assert read(text, "plain") == text.strip()
    assert read(" ".join(text.strip()), "spaced") == text.strip()


@pytest.mark.parametrize(
    "text", ["", "cran", "cranes", "Crane", "cr ne", "cr-ne", "crâne", "crane crane", "c r a n e", "12345", "crane\0"]
)
def test_anything_else_is_no_guess(text: str) -> None:
    assert read(text, "plain") is None


@pytest.mark.parametrize("text", ["crane", "c r a n", "c  r a n e", "c r a ne", "C r a n e", "c\tr a n e"])
def test_spaced_letters_have_one_space_between_them(text: str) -> None:
    assert read(text, "spaced") is None


def test_what_is_written_is_read_back() -> None:
    assert written("crane", "plain") == "crane" and written("crane", "spaced") == "c r a n e"
    assert read(written("crane", "spaced"), "spaced") == read(written("crane", "plain"), "plain") == "crane"
    assert read_colours("b y g b b", "spaced") == read_colours("bygbb", "plain") == "bygbb"
    assert read_colours("bygba", "plain") is None and read_colours(NO_WORD, "plain") is None


def test_opening_has_all_letters_of_the_answer_to_no_guess() -> None:
    assert set(NO_WORD) <= set(OPENING)
    assert read(OPENING, "plain") is None and read(NO_WORD, "plain") is None


def test_only_the_word_costs_nothing() -> None:
    assert [reward(guess, "crane") for guess in ("crane", "slate", None)] == [0.0, -1.0, -1.0]
