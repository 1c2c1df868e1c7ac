"""Guesses, colours, rewards and lists of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.wordle.rules import (
    NO_WORD,
    OPENING,
    PATTERN_TEXTS,
    SOLVED,
    Duplicates,
    Lexicon,
    colours,
    load_words,
    pattern_matrix,
    read,
    read_colours,
    written,
)


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
    assert set(NO_WORD) <= set(OPENING)
    assert read(OPENING, "plain") is None and read(NO_WORD, "plain") is None


@pytest.mark.parametrize("n", [40, 240])
def test_packaged_lists_have_different_sorted_words(n: int) -> None:
    words = load_words(n)
    assert len(words) == len(set(words)) == n
    assert list(words) == sorted(words)
    assert all(re.fullmatch("[a-z]{5}", word) for word in words)


def test_short_list_is_part_of_the_long_one_which_has_all_letters() -> None:
    assert set(load_words(40)) < set(load_words(240))
    assert len(set("".join(load_words(240)))) == 26


def test_file_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\r\nabout\nslate")
    assert load_words(path=str(path)) == ("crane", "about", "slate")
    with pytest.raises(DataError, match=r"no_such\.txt cannot be read: No such file"):
        load_words(path=str(tmp_path / "no_such.txt"))
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\n\xff\xff\xff\xff\xff\n")
    with pytest.raises(DataError, match=r"words\.txt:2: not valid UTF-8"):
        load_words(path=str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "crane\nabou\n",
            r"words\.txt:2: 'abou' is not a word of the game; a line must be 5 lower-case letters a to z",
        ),
        ("crane\nabouts\n", r"words\.txt:2: 'abouts'"),
        ("Crane\n", r"words\.txt:1: 'Crane'"),
        ("crane\n\nabout\n", r"words\.txt:2: ''"),
        ("crane \nabout\n", r"words\.txt:1: 'crane '"),
        ("naïve\n", r"words\.txt:1: 'naïve'"),
        ("crane\nabout\ncrane\n", r"words\.txt:3: 'crane' is also in line 1"),
        ("", r"words\.txt: there are no words"),
        ("crane\n", r"words\.txt: there is only one word"),
    ],
)
def test_invalid_file_is_an_error_that_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_words(path=str(path))


# With many repeated letters.
REPEATS = ("llama", "mamma", "eerie", "there", "geese", "speed", "erase", "abide", "allow", "belle", "label", "daddy")
DUPLICATES: list[Duplicates] = ["simple", "official"]


@pytest.mark.parametrize("duplicates", DUPLICATES)
@pytest.mark.parametrize("words", [REPEATS, load_words(240)], ids=["repeats", "240"])
def test_patterns_are_the_colours_of_the_rules(words: tuple[str, ...], duplicates: Duplicates) -> None:
    patterns = pattern_matrix(words, duplicates)
    assert patterns.shape == (len(words), len(words)) and patterns.dtype == np.uint8
    for i, guess in enumerate(words):
        for j, word in enumerate(words):
            assert PATTERN_TEXTS[patterns[i, j]] == colours(guess, word, duplicates)


def test_long_lists_are_coloured_in_parts() -> None:
    words = [a + b + c + "ab" for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"]
    patterns = pattern_matrix(words)
    for i in (0, 255, 256, 511):
        assert [PATTERN_TEXTS[p] for p in patterns[i]] == [colours(words[i], word) for word in words]


@pytest.mark.parametrize("duplicates", DUPLICATES)
@pytest.mark.parametrize("guess", ["label", "melee"], ids=["of the list", "another"])
def test_consistent_words_agree_with_all_colours(duplicates: Duplicates, guess: str) -> None:
    lexicon = Lexicon(REPEATS, duplicates)
    for hidden in REPEATS:
        answered = [(each, colours(each, hidden, duplicates)) for each in ("speed", guess)]
        found = {word for word, agrees in zip(REPEATS, lexicon.consistent(answered), strict=True) if agrees}
        assert hidden in found
        assert found == {
            word for word in REPEATS if all(colours(each, word, duplicates) == answer for each, answer in answered)
        }


def test_most_informative_guesses_have_the_highest_entropy() -> None:
    lexicon = Lexicon(load_words(240))
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 10, 50, 240):
        words = rng.choice(240, size, replace=False)
        consistent = np.zeros(240, dtype=bool)
        consistent[words] = True
        entropy = {}
        for guess in sorted(words):
            counts = Counter(colours(lexicon.words[guess], lexicon.words[word]) for word in words)
            entropy[guess] = sum(n / size * math.log(size / n) for n in counts.values())
        best = [guess for guess, value in entropy.items() if value > max(entropy.values()) - 1e-9]
        for _ in range(2):  # computed, then remembered
            assert lexicon.most_informative(consistent).tolist() == best
