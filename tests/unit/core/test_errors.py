from __future__ import annotations

from rl4dialog.core.errors import ConfigError, DataError, shown


def test_message_is_one_paragraph_whatever_a_file_has_put_into_it() -> None:
    assert str(DataError("columns: a\nb, c\r\nd")) == "columns: a b, c d"
    text = str(ConfigError("begin " + "x" * 1_000_000 + " end"))
    assert len(text) < 3100 and text.startswith("begin") and " [...] " in text and text.endswith(" end")


def test_values_are_cut_where_they_are_long() -> None:
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown("x" * 100, 10) == "'xxxxxxxxx ..."
