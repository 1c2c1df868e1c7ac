"""Patterns, consistent words and information gain as arrays, against the rules one by one."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import numpy as np
import pytest

from rl4dialog.tasks.wordle.lexicon import N_PATTERNS, PATTERN_TEXTS, Lexicon, pattern_matrix
from rl4dialog.tasks.wordle.rules import SOLVED, Duplicates, colours
from rl4dialog.tasks.wordle.words import load_words

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


def test_each_pattern_has_other_colours() -> None:
    assert len(set(PATTERN_TEXTS)) == N_PATTERNS == 243
    assert PATTERN_TEXTS[-1] == SOLVED


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


def test_contradictory_colours_leave_no_word() -> None:
    lexicon = Lexicon(REPEATS)
    assert lexicon.consistent([]).all()
    assert not lexicon.consistent([("speed", "ggggg"), ("llama", "ggggg")]).any()


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


def test_copies_have_the_same_words() -> None:
    lexicon = Lexicon(REPEATS, "official")
    copied = pickle.loads(pickle.dumps(lexicon))
    assert copied.words == REPEATS and copied.duplicates == "official"
    assert (copied.patterns == lexicon.patterns).all()
