"""Words that another text does not have."""

from __future__ import annotations

import pytest

from rl4dialog.runs.report.word_diff import Piece, word_diff


def test_words_that_the_other_text_lacks_are_new() -> None:
    found = word_diff("do you like red cars ?", "do you like cars ?")
    assert found == [Piece("do you like", False), Piece(" ", False), Piece("red", True), Piece(" cars ?", False)]


def test_texts_without_a_common_word_have_no_marks() -> None:
    assert word_diff("yes", "no way") == [Piece("yes", False)]
    assert word_diff("", "no") == [] and word_diff("yes", "") == [Piece("yes", False)]


@pytest.mark.parametrize("text", ["", " ", " a  b\nc ", "a b\n\n", "\ta"])
@pytest.mark.parametrize("other", ["", "a", "b c a", " a  b\nc "])
def test_pieces_add_up_to_the_text(text: str, other: str) -> None:
    assert "".join(piece.text for piece in word_diff(text, other)) == text


def test_order_counts() -> None:
    assert sum(piece.is_new for piece in word_diff("a b", "b a")) == 1
