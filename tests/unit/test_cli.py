from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import rl4dialog
from rl4dialog.cli import main
from rl4dialog.commands.parser import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"rl4dialog {rl4dialog.__version__}\n"


def test_misspelled_commands_get_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["trian", "--config_path", "x.yml"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "unknown command 'trian'; did you mean 'train'?" in error and ", ".join(COMMANDS) in error


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples_that_parse_and_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    examples, _, page = capsys.readouterr().out.partition("Examples:\n")[2].partition("\n\nDocumentation: ")
    assert f"rl4dialog {name}" in (ROOT / page.strip()).read_text(encoding="utf-8")
    for example in examples.splitlines():
        program, *arguments = shlex.split(example)
        assert program == "rl4dialog" and make_parser().parse_args(arguments).command == name


def test_page_of_the_docs_is_what_list_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--commands"]) == 0
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out, "write it anew: rl4dialog list --commands"
    assert "| `--overwrite` | Replace an existing run of the same name |" in page
    assert r"| `--resume [always\|auto]` |" in page and "| `--seeds SEED ...` |" in page
