from __future__ import annotations

import pytest

import rl4dialog
from rl4dialog.cli import COMMANDS, main


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
    assert all(f"    {name} " in printed or f"    {name}\n" in printed for name in COMMANDS)
