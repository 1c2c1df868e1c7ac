"""Guesses, colours, rewards and lists of words."""

import math
from collections import Counter

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.features.games.wordle import rules


@pytest.mark.parametrize(
    ("guess", "word", "simple", "official"),
    [
        ("crane", "crane", rules.SOLVED, rules.SOLVED),
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
def test_colours_of_repeated_letters(guess, word, simple, official):
    assert rules.colours(guess, word) == rules.colours(guess, word, "simple") == simple
    assert rules.colours(guess, word, "official") == official


@pytest.mark.parametrize(
    "text", ["", "cran", "cranes", "Crane", "cr ne", "cr-ne", "crâne", "crane crane", "c r a n e", "12345", "crane\0"]
)
def test_anything_else_is_no_guess(text):
    assert rules.read(text, "plain") is None


@pytest.mark.parametrize("text", ["crane", "c r a n", "c  r a n e", "c r a ne", "C r a n e", "c\tr a n e"])
def test_spaced_letters_have_one_space_between_them(text):
    assert rules.read(text, "spaced") is None


def test_what_is_written_is_read_back():
    assert rules.written("crane", "plain") == "crane" and rules.written("crane", "spaced") == "c r a n e"
    assert (
        rules.read(rules.written("crane", "spaced"), "spaced")
        == rules.read(rules.written("crane", "plain"), "plain")
        == "crane"
    )
    assert rules.read_colours("b y g b b", "spaced") == rules.read_colours("bygbb", "plain") == "bygbb"
    assert rules.read_colours("bygba", "plain") is None and rules.read_colours(rules.NO_WORD, "plain") is None
    assert set(rules.NO_WORD) <= set(rules.OPENING)
    assert rules.read(rules.OPENING, "plain") is None and rules.read(rules.NO_WORD, "plain") is None


def test_file_keeps_its_order(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\r\nabout\nslate")
    assert rules.load_words(path=str(path)) == ("crane", "about", "slate")
    with pytest.raises(DataError, match=r"no_such\.txt cannot be read: No such file"):
        rules.load_words(path=str(tmp_path / "no_such.txt"))
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\n\xff\xff\xff\xff\xff\n")
    with pytest.raises(DataError, match=r"words\.txt:2: not valid UTF-8"):
        rules.load_words(path=str(path))


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
def test_invalid_file_is_an_error_that_names_the_line(tmp_path, text, message):
    path = tmp_path / "words.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        rules.load_words(path=str(path))


# With many repeated letters.
REPEATS = ("llama", "mamma", "eerie", "there", "geese", "speed", "erase", "abide", "allow", "belle", "label", "daddy")
DUPLICATES = ["simple", "official"]


@pytest.mark.parametrize("duplicates", DUPLICATES)
@pytest.mark.parametrize("words", [REPEATS, rules.load_words(240)], ids=["repeats", "240"])
def test_patterns_are_the_colours_of_the_rules(words, duplicates):
    patterns = rules.pattern_matrix(words, duplicates)
    assert patterns.shape == (len(words), len(words)) and patterns.dtype == np.uint8
    for i, guess in enumerate(words):
        for j, word in enumerate(words):
            assert rules.PATTERN_TEXTS[patterns[i, j]] == rules.colours(guess, word, duplicates)


def test_long_lists_are_coloured_in_parts():
    words = [a + b + c + "ab" for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"]
    patterns = rules.pattern_matrix(words)
    for i in (0, 255, 256, 511):
        assert [rules.PATTERN_TEXTS[p] for p in patterns[i]] == [rules.colours(words[i], word) for word in words]


@pytest.mark.parametrize("duplicates", DUPLICATES)
@pytest.mark.parametrize("guess", ["label", "melee"], ids=["of the list", "another"])
def test_consistent_words_agree_with_all_colours(duplicates, guess):
    lexicon = rules.Lexicon(REPEATS, duplicates)
    for hidden in REPEATS:
        answered = [(each, rules.colours(each, hidden, duplicates)) for each in ("speed", guess)]
        found = {word for word, agrees in zip(REPEATS, lexicon.consistent(answered), strict=True) if agrees}
        assert hidden in found
        assert found == {
            word
            for word in REPEATS
            if all(rules.colours(each, word, duplicates) == answer for each, answer in answered)
        }


def test_most_informative_guesses_have_the_highest_entropy():
    lexicon = rules.Lexicon(rules.load_words(240))
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 10, 50, 240):
        words = rng.choice(240, size, replace=False)
        consistent = np.zeros(240, dtype=bool)
        consistent[words] = True
        entropy = {}
        for guess in sorted(words):
            counts = Counter(rules.colours(lexicon.words[guess], lexicon.words[word]) for word in words)
            entropy[guess] = sum(n / size * math.log(size / n) for n in counts.values())
        best = [guess for guess, value in entropy.items() if value > max(entropy.values()) - 1e-9]
        for _ in range(2):  # computed, then remembered
            assert lexicon.most_informative(consistent).tolist() == best
