"""Console commands in separate processes, unaffected by the state of this one: a single one, or a queue of them.

Whatever consists of several commands keeps to this: a rerun repeats or resumes what did not finish, and nothing else;
each failure is named with its log; and the exit code, that of a shell, is 0 only if everything is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import naming_errors

PARENT = "RL4DIALOG_PARENT"
"""Environment variable of a command that another one started: the id of that one's process."""
_POLL_S = 0.2
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: the command can be rerun
RESUMED = ("--resume", "auto")
"""Flags with which ``train`` continues a run, repeats one that has no checkpoint, and leaves a complete one alone."""
# Taken out of the environment, because what this process starts in turn is no child of that one.
_STARTED_BY = os.environ.pop(PARENT, None)


def is_started_by_command() -> bool:
    """Whether another command started this one."""
    return _STARTED_BY is not None


def end_with_parent() -> None:
    """Let this process save its state and stop once the command that started it is gone, even if that was killed."""

    def watch(parent: int, main_thread: int) -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        signal.pthread_kill(main_thread, signal.SIGTERM)

    if _STARTED_BY is not None and os.name == "posix":
        arguments = int(_STARTED_BY), threading.get_ident()
        threading.Thread(target=watch, args=arguments, name="end_with_parent", daemon=True).start()


@dataclass(frozen=True)
class Command:
    """A command, the file to which its output is appended, if any, and whether it is to save its state and stop now."""

    arguments: Sequence[str]
    output: Path | None = None
    is_to_stop: Callable[[], bool] = lambda: False


Task = Generator[Command, int, None]
"""Yields commands one after another, and is sent the exit code of each."""


def run_tasks(next_task: Callable[[], Task | None], n_jobs: int = 1) -> None:
    """Run the commands of tasks in separate processes, which share the cores; see :func:`ending_together`.

    ``n_jobs`` tasks run at a time. ``next_task`` returns ``None`` if there is none at the moment; the queue ends if
    none is running either. An error of a task, or of asking whether a command is to stop, reaches the task where it
    waits for the command, and then, unless the task handles it, the caller.
    """
    running: dict[subprocess.Popen[bytes], tuple[Task, Command]] = {}

    def advance(task: Task, step: Callable[[], Command]) -> None:
        try:
            command = step()
        except StopIteration:
            return
        process = start_command(command.arguments, environment=_shared_cores(n_jobs), output=command.output)
        running[process] = task, command

    with ending_together(running):
        while True:
            while len(running) < n_jobs and (task := next_task()) is not None:
                advance(task, partial(next, task))
            if not running:
                return
            time.sleep(_POLL_S)
            for process, (task, command) in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[process]
                    advance(task, partial(task.send, _exit_code(code)))
                    continue
                try:
                    if command.is_to_stop():
                        process.terminate()
                except Exception as error:
                    process.terminate()
                    process.wait()
                    del running[process]
                    advance(task, partial(task.throw, error))


def run_all(
    commands: Mapping[str, Command], n_jobs: int = 1, on_done: Callable[[str], None] = lambda name: None
) -> dict[str, int]:
    """Run commands by name, call ``on_done`` after successes, and return the exit codes of failures."""
    failed: dict[str, int] = {}

    def task(name: str, number: int) -> Task:
        say(f"{name} ({number} of {len(commands)})")
        if code := (yield commands[name]):
            failed[name] = code
            output = commands[name].output
            say(f"error: {name} failed ({ended(code)})" + (f", see {output}" if output else ""))
            return
        try:
            on_done(name)
        except DataError as error:  # of this one
            failed[name] = 2
            say(f"error: {name}: {error}")

    tasks = (task(name, number) for number, name in enumerate(commands, start=1))
    run_tasks(partial(next, tasks, None), n_jobs)
    return failed


def say_failed(failed: Mapping[str, int], n: int) -> int:
    """Name the parts that failed, of ``n``, and return the exit code: that of the first one, or 0 without any."""
    if failed:
        what = f"{len(failed)} of {n} failed: {', '.join(failed)}"
        say(f"error: {what}. The same command repeats what is not complete, and nothing else.")
    return next(iter(failed.values()), 0)


def ended(code: int) -> str:
    """How a command with this exit code ended."""
    if code == EXIT_INTERRUPTED:
        return f"exit code {code}: it was interrupted, and saved its state"
    names = {128 + number: number.name for number in signal.Signals}
    return f"exit code {code}" + (f": {names[code]}" if code in names else "")


def _exit_code(code: int) -> int:
    """The code that a shell shows for a process, which is above 128 if a signal ended it."""
    return 128 - code if code < 0 else code


def run_command(arguments: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = {}) -> int:
    """Run ``rl4dialog`` with arguments on this console, and return its exit code; see :func:`ending_together`."""
    processes: list[subprocess.Popen[bytes]] = []
    with ending_together(processes):
        processes.append(start_command(arguments, folder, environment))
        return _exit_code(processes[0].wait())


def start_command(
    arguments: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] = {},
    output: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``rl4dialog`` with arguments, on this console or with its output appended to a file."""
    command = [sys.executable, "-m", "rl4dialog.cli", *arguments]
    environment = {**os.environ, PARENT: str(os.getpid()), **environment}
    if output is None:
        return subprocess.Popen(command, cwd=folder, env=environment)
    with naming_errors(output), open(output, "ab") as file:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)


def train_arguments(config: str | Path, run: Path, *flags: str, overrides: Iterable[str] = ()) -> list[str]:
    """Arguments of the command that trains a config in a run folder."""
    flags = (*flags, *(text for override in overrides for text in ("--set", override)))
    place = ["--base_path_to_store_results", str(run.parent.parent), "--project_name", run.parent.name]
    return ["train", "--config_path", str(config), *flags, *place, "--experiment_name", run.name]


def say(line: str) -> None:
    """Write a line about the course of an experiment to the standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def _shared_cores(n_jobs: int) -> dict[str, str]:
    """Variables that share the cores among simultaneous runs, unless the user has set a number of threads."""
    if n_jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n_jobs))}


@contextmanager
def ending_together(processes: Collection[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End the given processes with this one, also those added during the block.

    Ctrl-C reaches all processes, and SIGTERM is forwarded. This process waits for the others to save their state, and
    exits with the code of one of them, or 75 if none had anything to save. After any other error they are killed.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would end the wait below
        for process in processes:
            process.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C ends this wait and kills the processes below.
        codes = [process.wait() for process in processes]
        how = " without --overwrite" if "--overwrite" in sys.argv else ""
        say(f"interrupted; rerun the command{how} to continue")
        raise SystemExit(max([code for code in codes if code > 0], default=EXIT_INTERRUPTED)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
