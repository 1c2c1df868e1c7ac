"""Reading the commands of a chat."""

from __future__ import annotations

import re

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.slash_commands import parse_command


def test_command_and_what_stands_behind_it_are_read() -> None:
    assert parse_command("/persona  I am a cat. ") == ("persona", "I am a cat.")
    assert parse_command("/persona") == ("persona", "")
    assert parse_command("/undo") == ("undo", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/tempreature 2", "unknown command '/tempreature'; did you mean '/temperature'? (/help"),
        ("/zzz", "unknown command '/zzz' (/help lists the commands)"),
        ("/", "unknown command '/'"),
        ("/save", "/save needs FILE"),
        ("/undo 2", "/undo takes no argument, not '2'"),
    ],
)
def test_mistake_is_told(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_command(line)
