"""The pages of ``rl4dialog ui``, in a process of their own or in this one."""

import contextlib

import pytest
from apart import Command
from http_servers import free_port

from rl4dialog import cli
from rl4dialog.features.serving import server
from rl4dialog.features.serving.judging import JudgingPage


def _need_gradio():
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")


def start_page(folder, *flags, port=None):
    """Start the command; returns the process and the page's address once it is served."""
    _need_gradio()
    address = f"http://127.0.0.1:{(port := port or free_port())}"
    command = Command(["ui", *flags, "--port", str(port)], folder)
    command.wait_for(lambda: f"The page is at {address}; press Ctrl-C to stop.\n" in command.output)
    return command, address


@contextlib.contextmanager
def page_of(*flags):
    """The address of the command's page, served by this process."""
    _need_gradio()
    pages = []
    serve, port = server.serve, free_port()

    def serve_without_waiting(page, *args, **kwargs):
        pages.append(page)
        serve(page, *args, **kwargs, block=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "serve", serve_without_waiting)
        assert cli.main(["ui", *flags, "--port", str(port)]) == 0
    yield f"http://127.0.0.1:{port}"
    pages[0].blocks.close(verbose=False)


@contextlib.contextmanager
def served_page(build, allow_hosts=()):
    """The address of a page, served by this process."""
    _need_gradio()
    page, port = build(), free_port()
    server.serve(page, server.Address("127.0.0.1", port, allow_hosts), lambda text: None, block=False)
    yield f"http://127.0.0.1:{port}"
    page.blocks.close(verbose=False)


def served(judging):
    """The address of the page on which people judge, served by this process."""
    return served_page(lambda: JudgingPage(judging))
