"""Texts of strangers on terminals and in files that are passed on."""

import io

import pytest
from rich.table import Table
from rich.text import Text

from rl4dialog.core.console import Console
from rl4dialog.core.errors import DataError
from rl4dialog.core.untrusted import redacted, visible, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host:8/a?b=1#c", "https://***@host:8/a?b=1#c"),
        ("--set 'url=wss://tok@h', http://h/x?api_key=K&n=2", "--set 'url=wss://***@h', http://h/x?api_key=***&n=2"),
        (
            "http://h?lang=en;X-Amz-Signature=ab12&Access-Token=t",
            "http://h?lang=en;X-Amz-Signature=***&Access-Token=***",
        ),
        ("+    url: http://u:p@q/reply?code=9", "+    url: http://***@q/reply?code=***"),
        ("a@b.c wrote x?token=1 about http://h/@me", "a@b.c wrote x?token=1 about http://h/@me"),
    ],
)
def test_credentials_of_addresses_are_hidden_and_nothing_else(text, shown):
    assert redacted(text) == shown
    assert without_secrets({"a": [{"b": text, "n": 1}]}) == {"a": [{"b": shown, "n": 1}]}
    assert str(DataError(f"cannot reach {text}")) == f"cannot reach {shown}"


def test_values_under_secret_names_are_hidden():
    given = {"api_key": "abcd", "key": "id", "args": {"hf_token": "t", "api_key_env": "NAME", "max_tokens": 3}}
    hidden = {"api_key": "***", "key": "id", "args": {"hf_token": "***", "api_key_env": "NAME", "max_tokens": 3}}
    assert without_secrets(given) == hidden


@pytest.mark.parametrize(
    "control", ["\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "a\rb", "\x08", "\u202eabc", "\x1b]8;;http://h\x1b\\"]
)
def test_console_and_errors_write_no_control_characters_of_a_text(control):
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system="standard")
    table = Table(f"title {control}")
    table.add_row(Text(f"cell {control}", style="bold"))
    console.print(table)
    console.print(f"line {control}", markup=False)
    plain = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard")
    own = {c for c in _printed(plain) if not c.isprintable()}
    assert {c for c in file.getvalue() if not c.isprintable()} <= own == {"\x1b", "\n"}
    assert control not in file.getvalue() and "cell " in file.getvalue()
    assert all(c.isprintable() for c in str(DataError(f"a {control}")))
    assert visible(f"a\n\t{control}").startswith("a\n\t")


def test_spaces_and_joiners_are_visible():
    text = "10\u00a0km \u4f60\u3000\u597d \u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f680 \u20ac"
    assert visible(text) == text == str(DataError(text))


def _printed(console):
    console.print(Text("x", style="bold"))
    return console.file.getvalue()
