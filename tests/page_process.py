"""The pages of ``rl4dialog ui`` in a process of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from http_servers import free_port

from rl4dialog.serving.judging import Judging, JudgingPage
from rl4dialog.serving.page import Page
from rl4dialog.serving.server import serve

ROOT = Path(__file__).parents[1]


def start_page(*flags: str) -> tuple[subprocess.Popen[str], str]:
    """Start the command; returns the process and the page's address once it is served."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    arguments = [sys.executable, "-m", "rl4dialog.cli", "ui", *flags, "--port", port]
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    printed = iter(process.stdout.readline, "")
    if not any(line == f"The page is at http://127.0.0.1:{port}; press Ctrl-C to stop.\n" for line in printed):
        raise AssertionError(process.communicate()[1])
    return process, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def page_of(*flags: str) -> Iterator[str]:
    """The address of the command's page, which is ended as Ctrl-C does."""
    process, address = start_page(*flags)
    try:
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0 and "Traceback" not in errors, errors


@contextlib.contextmanager
def served_page(build: Callable[[], Page[Any]], allow_hosts: Sequence[str] = ()) -> Iterator[str]:
    """The address of a page, served by this process."""
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    page, port = build(), free_port()
    serve(page, "127.0.0.1", port, lambda text: None, block=False, allow_hosts=allow_hosts)
    yield f"http://127.0.0.1:{port}"
    page.blocks.close(verbose=False)


def served(judging: Judging[Any]) -> contextlib.AbstractContextManager[str]:
    """The address of the page on which people judge, served by this process."""
    return served_page(lambda: JudgingPage(judging))
