"""Console commands in processes of their own, forked from one that has loaded torch: each would take seconds for that.

That process knows nothing of the test: it is started once, and gets arguments and environment of each command.
"""

import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from http_servers import free_port
from runs import write_config

ROOT = Path(__file__).parents[1]
_LOADED = (
    *("rl4dialog.commands.train", "rl4dialog.training.trainer", "rl4dialog.inference.loading"),
    *("stable_baselines3", "transformers.models.gpt2.modeling_gpt2"),
)
_PREPARE = "rl4dialog.commands.train._prepare_in_a_process_of_its_own"


class Command:
    """A command in a session of its own, with further environment variables, `without` what some functions do."""

    def __init__(self, arguments, folder, environment=(), without=()):
        folder.mkdir(parents=True, exist_ok=True)
        self._files = [folder / "stdout.txt", folder / "stderr.txt"]
        for file in self._files:
            file.write_text("")
        self.pid = _ask(
            arguments=list(arguments),
            environment={**os.environ, "OMP_NUM_THREADS": "1", **dict(environment)},
            files=[str(file) for file in self._files],
            without=list(without),
        )
        self.returncode = None

    @property
    def output(self):
        return self._files[0].read_text(encoding="utf-8")

    @property
    def errors(self):
        return self._files[1].read_text(encoding="utf-8")

    def poll(self):
        """The exit code, negative for the number of a signal, or None while it runs."""
        if self.returncode is None:
            self.returncode = _ask(pid=self.pid)
        return self.returncode

    def wait(self, seconds=120):
        """Wait for the end; one that does not end is killed, and an error."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"it did not end within {seconds} s:\n{self.output}\n{self.errors}")
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def wait_for(self, happened, seconds=120):
        """Wait for something that happens while it runs."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.02)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.02)


def launched(n_processes, arguments, folder, environment=(), own_arguments=()):
    """The processes of one run, with the variables that ``torchrun`` sets; the cache is to be filled."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    size = {"WORLD_SIZE": str(n_processes), "LOCAL_WORLD_SIZE": str(n_processes)}
    return [
        Command(
            [*arguments, *dict(own_arguments).get(number, ())],
            folder / f"process_{number}",
            {**place, **size, "RANK": str(number), "LOCAL_RANK": str(number), **dict(environment)},
            [_PREPARE],
        )
        for number in range(n_processes)
    ]


def trained(tmp_path, config, n_processes, *flags, **environment):
    """The processes of a run in ``p/by_<n>``, started side by side."""
    folder = tmp_path / f"by_{n_processes}"
    arguments = [
        *("train", "--config_path", str(write_config(folder, config))),
        *("--base_path_to_store_results", str(tmp_path)),
        *("--project_name", "p", "--experiment_name", folder.name, *flags),
    ]
    if n_processes == 1:
        return [Command(arguments, folder, environment)]
    return launched(n_processes, arguments, folder, environment)


def finished(tmp_path, config, n_processes, *flags, **environment):
    """What the first process of a run printed, which must not fail."""
    processes = trained(tmp_path, config, n_processes, *flags, **environment)
    for process in processes:
        assert process.wait(500) == 0, process.errors
        assert "autograd" not in process.errors, "torch warns of gradients through messages of processes"
    return processes[0].errors


def _ask(**request):
    control, _ = _server()
    control.write(json.dumps(request) + "\n")
    control.flush()
    answer = control.readline()
    assert answer, "the process that starts commands has died"
    return json.loads(answer)


@functools.cache
def _server():
    ours, theirs = socket.socketpair()
    code = f"import sys; sys.path[:] = {sys.path!r}; from apart import serve; serve({theirs.fileno()})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    theirs.close()
    return ours.makefile("rw"), process


# -- in that process --------------------------------------------------------------------------------------------------


def serve(handle):
    """Start commands until the tests end."""
    for name in _LOADED:
        importlib.import_module(name)
    importlib.import_module("tiny").shrink_built_in_models()
    codes = {}
    connection = socket.socket(fileno=handle)
    with connection, connection.makefile("rw") as control:
        for line in control:
            request = json.loads(line)
            if "arguments" in request:
                answer = os.fork()
                if answer == 0:
                    connection.close()
                    _run(**request)
                codes[answer] = None
            else:
                pid = request["pid"]
                if codes[pid] is None and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(ended[1])
                answer = codes[pid]
            control.write(json.dumps(answer) + "\n")
            control.flush()
    for pid, code in codes.items():
        if code is None:
            os.kill(pid, signal.SIGKILL)


def _run(arguments, environment, files, without):
    from rl4dialog import cli

    os.setsid()
    # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    for name in without:
        module, _, function = name.rpartition(".")
        setattr(importlib.import_module(module), function, lambda *_: None)
    code = 1
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
