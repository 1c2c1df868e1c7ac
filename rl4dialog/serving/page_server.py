"""Serving the page on this machine: nothing on it comes from elsewhere, and nothing goes elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.page import ChatPage, load_gradio
from rl4dialog.serving.page_guard import PageGuard, PageHosts

STYLE = Path(__file__).with_name("page.css")


def check_address(host: str, port: int) -> None:
    """Check that a server can listen there.

    Raises:
        ConfigError: If it cannot: another program does, the port is none, or the host is not this machine.
    """
    if not 0 < port < 65536:
        raise ConfigError(f"--port must be a number from 1 to 65535, not {port}")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as listener:
            # A port that was closed a moment ago is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: nothing can be served there ({error.strerror or error}); "
            "another port may be free, and 127.0.0.1 is always this machine"
        ) from error


def serve(
    page: ChatPage,
    host: str,
    port: int,
    write: Callable[[str], None],
    block: bool = True,
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        page: The page.
        host: The address to listen at.
        port: The port.
        write: Prints a text as it stands.
        block: Whether to wait; otherwise the server goes on in a thread until ``page.blocks.close()``.
        allow_hosts: Further names under which the page may be asked for; see `PageHosts`.

    Raises:
        ConfigError: If nothing can be served there, or a name is none.
    """
    check_address(host, port)
    hosts, gradio = PageHosts(host, port, allow_hosts), load_gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    try:
        page.blocks.queue(default_concurrency_limit=1).launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            pwa=False,
            enable_monitoring=False,
            footer_links=[],
            show_error=True,
            theme=gradio.themes.Default(primary_hue="blue", **fonts),
            css_paths=STYLE,
        )
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: nothing can be served there ({error})") from error
    # Before all that Gradio itself has there, which would answer some requests first.
    app = page.blocks.app
    app.middleware_stack = PageGuard(app.middleware_stack or app.build_middleware_stack(), hosts)
    if not block:
        return
    with suppress(KeyboardInterrupt):
        write(f"The page is at http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C ends it.\n")
        threading.Event().wait()
    # Not Gradio's own way to wait: it leaves the connections of open tabs, and then waits for them.
    page.blocks.close(verbose=False)
