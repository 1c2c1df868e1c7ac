"""Commands in processes of their own, one or a queue of them, and how they end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from child_commands import FakeProcess, replace_commands
from runs import make_config

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.training import own_process
from rl4dialog.training.own_process import Command, ended, ending_together, run_all, run_command, run_tasks, say_failed


def start(folder, code, exit_code):
    """Start code that starts ``./child``, which saves and ends when it is told to; returns once that is up."""
    child = folder / "child"
    child.write_text(CHILD.replace("{python}", sys.executable).replace("{code}", str(exit_code)))
    child.chmod(0o755)
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        stdout=subprocess.PIPE,
        env={**os.environ, "COLOUR": "red", "PYTHONPATH": path},
        start_new_session=True,
        # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == b"up\n"
    return parent


CHILD = """#!{python}
import os, signal, sys, time
from rl4dialog.training.own_process import end_with_parent
def end(number, frame):
    open("saved", "w").write(os.environ["COLOUR"])
    sys.exit({code})
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
end_with_parent()
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import sys
from rl4dialog.training.own_process import run_command
sys.executable = "./child"
run_command(["train"], environment={"COLOUR": "blue"})
"""


def test_exit_code_is_handed_on(capfd):
    assert run_command(["--help"]) == 0
    assert run_command(["no_such_command"]) == 2
    codes = {
        0: "exit code 0",
        3: "exit code 3",
        160: "exit code 160",
        137: "exit code 137: SIGKILL",
        75: "exit code 75: it was interrupted",
    }
    assert all(ended(code).startswith(text) for code, text in codes.items())
    assert "evaluate" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 42), (signal.SIGINT, 42), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_both_end_and_the_command_may_save_first(tmp_path, number, code):
    parent = start(tmp_path, PARENT, 42)
    (os.killpg if number is signal.SIGINT else os.kill)(parent.pid, number)  # a console sends Ctrl-C to all
    assert parent.wait(timeout=30) == code
    saved, deadline = tmp_path / "saved", time.monotonic() + 30
    while not (saved.is_file() and saved.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)  # the child outlives a parent that was killed
    assert saved.read_text() == "blue"


@pytest.mark.parametrize("is_gone", [True, False])
def test_command_whose_parent_is_gone_at_its_start_ends(is_gone):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    begin = "from rl4dialog.training.own_process import end_with_parent; import os, time; end_with_parent()"
    check = "assert 'RL4DIALOG_PARENT' not in os.environ"  # what it starts in turn is not a child of that one
    code = f"{begin}; {check}; time.sleep({60 if is_gone else 1})"
    parent = gone.pid if is_gone else os.getpid()
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RL4DIALOG_PARENT": str(parent)})
    assert child.wait(timeout=50) == (-signal.SIGTERM if is_gone else 0)


@pytest.mark.parametrize("to_all", [False, pytest.param(True, marks=pytest.mark.long)])
def test_seeds_that_a_signal_stops_exit_as_a_run_does(tmp_path, to_all):
    (tmp_path / "config.yml").write_text(yaml.safe_dump(make_config(tmp_path)))
    begin = "import sys; from rl4dialog.cli import main; sys.executable = './child'"
    flags = ["train", "--config_path", "config.yml", "--seeds", "0", "1"]
    parent = start(tmp_path, f"{begin}; sys.exit(main({flags}))", 75)
    (os.killpg if to_all else os.kill)(parent.pid, signal.SIGTERM)  # a scheduler may send it to all processes
    assert parent.wait(timeout=30) == 75


@pytest.mark.parametrize(("flags", "how"), [([], ""), (["--overwrite"], " without --overwrite")])
def test_child_that_had_nothing_to_save_counts_as_interrupted(flags, how, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rl4dialog", *flags])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(SystemExit) as ended, ending_together([child]):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert ended.value.code == 75 and child.returncode == -signal.SIGTERM
    assert f"rerun the command{how} to continue" in capsys.readouterr().err


def test_simultaneous_runs_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(own_process.os, "cpu_count", lambda: 8)
    assert own_process._shared_cores(1) == {} and own_process._shared_cores(4) == {"OMP_NUM_THREADS": "2"}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert own_process._shared_cores(4) == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_a_signal_ended_has_failed_with_the_code_of_a_shell(monkeypatch, capsys, number):
    replace_commands(monkeypatch, lambda arguments, output: FakeProcess(0 if arguments == ["ok"] else -number))
    failed = run_all({name: Command([name], Path(f"{name}.log")) for name in ("bad", "ok")})
    assert say_failed(failed, 2) == 128 + number and failed == {"bad": 128 + number}
    said = capsys.readouterr().err
    assert (
        f"bad failed (exit code {128 + number}: {number.name}), see bad.log" in said and "1 of 2 failed: bad." in said
    )
    assert say_failed({}, 2) == 0


def test_a_result_that_cannot_be_read_is_a_failure_of_its_command_alone(monkeypatch, capsys):
    replace_commands(monkeypatch, lambda arguments, output: FakeProcess(0))
    done = []

    def read(name):
        if name == "bad":
            raise DataError("its file is damaged")
        done.append(name)

    assert run_all({name: Command([name]) for name in ("a", "bad", "b")}, on_done=read) == {"bad": 2}
    assert done == ["a", "b"] and "error: bad: its file is damaged" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file/x\.txt cannot be written"):
        run_all({"x": Command(["train"], tmp_path / "file" / "x.txt")})


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_tasks_get_the_codes_of_their_commands_and_take_turns(monkeypatch, n_jobs):
    commands = replace_commands(monkeypatch, lambda arguments, output: FakeProcess(int(arguments[0][1:])))
    codes = {"a": [], "b": []}

    def task(name):
        for code in (0, 4):
            codes[name].append((yield Command([f"{name}{code}"])))

    tasks = [task(name) for name in codes]
    run_tasks(lambda: tasks.pop(0) if tasks else None, n_jobs)
    assert codes == {"a": [0, 4], "b": [0, 4]}
    order = ["a0", "a4", "b0", "b4"] if n_jobs == 1 else ["a0", "b0", "a4", "b4"]
    assert [command for (command,) in commands] == order


def test_error_of_a_question_reaches_the_task_and_ends_all(monkeypatch):
    processes = [FakeProcess(0, polls=1000), FakeProcess(0, polls=1000)]
    waiting = list(processes)
    replace_commands(monkeypatch, lambda arguments, output: waiting.pop(0))
    seen = []

    def ask():
        raise RuntimeError("no metric")

    def task(command):
        try:
            yield command
        except RuntimeError as error:
            seen.append(str(error))
            raise

    tasks = [task(Command(["a"])), task(Command(["b"], is_to_stop=ask))]
    with pytest.raises(RuntimeError, match="no metric"):
        run_tasks(lambda: tasks.pop(0) if tasks else None, 2)
    assert seen == ["no metric"] and [process.code for process in processes] == [75, 75]


def test_task_may_go_on_after_the_error_of_a_question(monkeypatch):
    commands = replace_commands(monkeypatch, lambda arguments, output: FakeProcess(0, polls=1000 if output else 2))
    codes = []

    def ask():
        raise RuntimeError("no metric")

    def task():
        try:
            yield Command(["a"], Path("a.txt"), is_to_stop=ask)
        except RuntimeError:
            codes.append((yield Command(["b"])))

    tasks = [task()]
    run_tasks(lambda: tasks.pop(0) if tasks else None)
    assert codes == [0] and commands == [["a"], ["b"]]


def test_interrupted_queue_waits_for_its_commands_and_exits_as_they_do(monkeypatch):
    replace_commands(monkeypatch, lambda arguments, output: FakeProcess(75, polls=1000))
    monkeypatch.setattr(own_process.time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))

    def task():
        yield Command(["a"])

    with pytest.raises(SystemExit) as end:
        run_tasks(task)
    assert end.value.code == 75
