from __future__ import annotations

import pytest

from rl4dialog.catalog import PostProcessorRegistry
from rl4dialog.text.post_processing import three_sentence_summary


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
