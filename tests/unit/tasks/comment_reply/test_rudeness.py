"""The rudeness of a text by its words, and its noise."""

from __future__ import annotations

import random
import statistics

import pytest

from rl4dialog.tasks.comment_reply.rudeness import MILD, POLITE, STRONG, WORDS, noised, rudeness_of


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", POLITE),
        ("i love soups too.", POLITE),
        ("Duh, i love soups.", MILD),
        ("i love soups.Whatever", MILD),
        ("so  what?", MILD),
        ("so\nwhat?", MILD),
        ("so, what do you cook?", POLITE),
        ("you clown.", STRONG),
        ("yawn. SHUT UP!", STRONG),
        ("you idiot, duh.", STRONG),
        ("clowns are foolish", POLITE),
        ("a dumbbell", POLITE),
    ],
)
def test_level_is_that_of_the_rudest_whole_word(text: str, level: int) -> None:
    assert rudeness_of(text) == level


def test_every_word_has_its_level() -> None:
    assert all(rudeness_of(f"x {word}.") == level for level, words in WORDS.items() for word in words)


def test_noise_moves_mild_rudeness_up_or_down_with_equal_probability() -> None:
    rng, n = random.Random(0), 4000
    levels = [noised(MILD, rng) for _ in range(n)]
    assert set(levels) == {POLITE, STRONG}
    assert abs(statistics.mean(levels) - 1) < 4 / n**0.5
    assert [noised(level, rng) for level in (POLITE, STRONG) * 50] == [POLITE, STRONG] * 50
