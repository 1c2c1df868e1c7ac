"""Content words."""

from __future__ import annotations

from rl4dialog.text.content_words import content_words


def test_function_words_case_and_final_s_do_not_count() -> None:
    assert content_words("Do you LIKE dogs, or the dog's bones?") == {"dog", "bone"}
