"""Sentences and words without downloaded data, words of a topic, and post-processing."""

from __future__ import annotations

import pytest

from rl4dialog.catalog import PostProcessorRegistry
from rl4dialog.text.words import content_words, split_sentences, split_words, three_sentence_summary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I see. Do you? Yes!", ["I see.", "Do you?", "Yes!"]),
        ("Mr. Smith comes at 8 p.m. on time.", ["Mr. Smith comes at 8 p.m. on time."]),
        ("no end", ["no end"]),
        ("", []),
        (" \n", []),
        ("😀 ok. Ünïcode.", ["😀 ok.", "Ünïcode."]),
    ],
)
def test_sentences_end_at_marks_but_not_at_abbreviations(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop. Go on!", ["Do", "n't", "stop", ".", "Go", "on", "!"]),
        ("the boy's cat, 3.5 kg", ["the", "boy", "'s", "cat", ",", "3.5", "kg"]),
        ("", []),
        ("😀", ["😀"]),
    ],
)
def test_words_are_those_of_the_penn_treebank(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


def test_function_words_case_and_final_s_do_not_count() -> None:
    assert content_words("Do you LIKE dogs, or the dog's bones?") == {"dog", "bone"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Fox ran. It rained! Who won? Nobody.", "Mr. Fox ran.\nIt rained!\nWho won?"),
        ("One. Two", "One.\nTwo"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_first_three_sentences_stay_a_line_each(text: str, expected: str) -> None:
    assert three_sentence_summary(text) == expected
    assert PostProcessorRegistry.get("three_sentence_summary")(text) == expected
