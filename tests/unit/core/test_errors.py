from rl4dialog.core.errors import ConfigError, DataError, shown


def test_message_is_one_paragraph_of_short_values():
    assert str(DataError("columns: a\nb, c\r\nd")) == "columns: a b, c d"
    text = str(ConfigError("begin " + "x" * 1_000_000 + " end"))
    assert len(text) < 3100 and text.startswith("begin") and " [...] " in text and text.endswith(" end")
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown("x" * 100, 10) == "'xxxxxxxxx ..."
