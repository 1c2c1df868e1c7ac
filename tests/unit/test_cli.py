import errno
import io
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from feature_rows import rows_of_features

import rl4dialog
from rl4dialog import cli
from rl4dialog.cli import LenientStream, lenient_output, main
from rl4dialog.commands.list import RECOMMENDED
from rl4dialog.commands.parser import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"rl4dialog {rl4dialog.__version__}\n"


def test_commands_end_with_what_started_them(monkeypatch):
    calls = []
    monkeypatch.setattr(cli, "end_with_parent", lambda: calls.append(True))
    assert main(["list"]) == 0 and calls


def test_misspelled_commands_get_a_suggestion(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["trian", "--config_path", "x.yml"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "unknown command 'trian'; did you mean 'train'?" in error and ", ".join(COMMANDS) in error


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--help"], ["init", "train", *rows_of_features("FIRST"), "evaluate", "list"]),
        (["--help", "--all"], list(COMMANDS)),
        (["--all"], list(COMMANDS)),
    ],
)
def test_help_names_the_first_commands_or_all(argv, names, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    printed = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " in printed] == [name for name in COMMANDS if name in names]
    assert ("rl4dialog --help --all" in printed) == (argv == ["--help"])
    assert len(printed.splitlines()) <= 30 or "--all" in argv


def test_list_shows_kinds_then_one_kind_and_configs_to_start_from(capsys):
    assert main(["list"]) == 0
    kinds = capsys.readouterr().out
    assert len(kinds.splitlines()) <= 40 and "rl4dialog list KIND" in kinds
    assert re.search(r"^algorithms +7  a2c, grpo, nlpo, \.\.\.$", kinds, re.MULTILINE)
    assert main(["list", "configs"]) == 0
    first, _, by_task = capsys.readouterr().out.partition("All, by task")
    assert all(name in first and (ROOT / "task_configs" / name).exists() for name in RECOMMENDED)
    assert all(f"{name.partition('/')[0]}/: " in by_task for name in RECOMMENDED)
    assert all(f"task_configs/{name}" in (ROOT / "README.md").read_text(encoding="utf-8") for name in RECOMMENDED)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples_that_parse_and_a_page(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    examples, _, page = capsys.readouterr().out.partition("Examples:\n")[2].partition("\n\nDocumentation: ")
    assert f"rl4dialog {name}" in (ROOT / page.strip()).read_text(encoding="utf-8")
    for example in examples.splitlines():
        program, *arguments = shlex.split(example)
        assert program == "rl4dialog" and make_parser().parse_args(arguments).command == name


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_letters_that_a_stream_has_not_are_escaped():
    raw = io.BytesIO()
    stream = LenientStream(io.TextIOWrapper(raw, encoding="latin-1"))
    print("caf\xe9 \u2014 \U0001f600", file=stream)
    stream.flush()
    assert raw.getvalue() == b"caf\xe9 \\u2014 \\U0001f600\n" and stream.error is None


def test_full_closed_and_missing_streams_are_none_to_stop_at():
    closed = io.StringIO()
    closed.close()
    full = LenientStream(Full())
    for stream in (full, full, LenientStream(closed), LenientStream(None)):
        print("x", file=stream)
        stream.flush()
    assert full.error is not None and full.error.errno == errno.ENOSPC


def test_standard_streams_are_as_before_afterwards():
    before = sys.stdout, sys.stderr
    with lenient_output():
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(("error", "code"), [(OSError(errno.ENOSPC, "No space left"), 2), (BrokenPipeError(), 0)])
def test_command_says_that_its_output_is_lost(monkeypatch, capsys, error, code):
    class Failing(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, "stdout", Failing())
    assert cli.main(["list"]) == code
    assert ("cannot write to the standard output" in capsys.readouterr().err) == bool(code)


@pytest.mark.long
def test_number_of_a_full_stream_leads_nowhere_afterwards():
    code = "from rl4dialog.cli import main; raise SystemExit(main(['list']))"
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        import subprocess

        done = subprocess.run([sys.executable, "-c", code], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_handler_that_closes_its_stream_leaves_the_standard_output_open(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with lenient_output() as output:
        output.close()
    stream.write("still open")
    assert stream.getvalue() == "still open"


def test_several_overrides_may_follow_one_set():
    parsed = make_parser().parse_args(["train", "--config_path", "a.yml", "--set", "a=1", "b=2", "--set", "c=3"])
    assert parsed.overrides == ["a=1", "b=2", "c=3"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "lower alg.args.micro_batch_size"),
        (RuntimeError("MPS backend out of memory"), "lower alg.args.micro_batch_size"),
        (MemoryError("Unable to allocate 7.28 TiB for an array"), "lower alg.args.micro_batch_size"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "log.txt"), "raise the limit of open files"),
        (RuntimeError("received 0 items of ancdata: Too many open files"), "raise the limit of open files"),
    ],
)
def test_lack_of_memory_or_files_is_one_paragraph_with_advice(error, advice, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setitem(COMMANDS, "list", replace(COMMANDS["list"], run=fail))
    assert main(["list"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {error}") and advice in message
