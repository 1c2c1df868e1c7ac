"""Scripts of other systems beside their ports."""

import shlex
import textwrap

from rl4dialog import cli

MOST = 5


def assert_few_lines_changed(original, port):
    known = {line.strip() for line in original.splitlines()}
    changed = [line for line in port.splitlines() if line.strip() and line.strip() not in known]
    assert 0 < len(changed) <= MOST


def run_python(port, monkeypatch, folder):
    monkeypatch.chdir(folder)
    found = {}
    exec(textwrap.dedent(port), found)
    return found


def run_commands(port, monkeypatch, folder):
    monkeypatch.chdir(folder)
    for line in port.split("\n"):
        if words := shlex.split(line):
            assert cli.main(words[1:]) == 0
