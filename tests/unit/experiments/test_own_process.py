"""A command in a process of its own, and how both end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl4dialog.experiments import own_process
from rl4dialog.experiments.own_process import run_command

CHILD = """#!{python}
import os, signal, sys, time
def end(number, frame):
    open("saved", "w").write(os.environ["COLOUR"])
    sys.exit(42)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import sys
from rl4dialog.experiments.own_process import run_command
sys.executable = "./child"
run_command(["train"], environment={"COLOUR": "red"})
"""


def test_exit_code_is_handed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    assert run_command(["no_such_command"]) == 2
    assert "reproduce" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_end_and_the_command_may_save_first(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "child").write_text(CHILD.replace("{python}", sys.executable))
    (tmp_path / "child").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    if number is signal.SIGINT:
        os.killpg(parent.pid, number)  # as a console does
    else:
        parent.send_signal(number)
    assert parent.wait(timeout=30) == 42
    parent.stdout.close()
    assert (tmp_path / "saved").read_text() == "red"


def test_simultaneous_runs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(own_process.os, "cpu_count", lambda: 8)
    assert own_process.shared_cores(1) == {} and own_process.shared_cores(4) == {"OMP_NUM_THREADS": "2"}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert own_process.shared_cores(4) == {}
