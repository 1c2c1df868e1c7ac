"""Serving the page on this machine: nothing on it comes from elsewhere, and nothing goes elsewhere."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.page import ChatPage, load_gradio

STYLE = Path(__file__).with_name("page.css")
# Gradio's own scripts make functions from templates. Nothing may be asked of another host, whatever a package does.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'self'; form-action 'self'"
)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class OwnHostOnly:
    """Has browsers refuse whatever the page might ask of another host.

    Args:
        app: Answers requests, as ASGI has it.
    """

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        async def send_with_policy(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY.encode())]
            await send(message)

        await self._app(scope, receive, send_with_policy)


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


def serve(page: ChatPage, host: str, port: int, write: Callable[[str], None], block: bool = True) -> None:
    """Serve the page until Ctrl-C.

    Args:
        page: The page.
        host: The address to listen at.
        port: The port.
        write: Prints a text as it stands.
        block: Whether to wait; otherwise the server goes on in a thread until ``page.blocks.close()``.

    Raises:
        ConfigError: If nothing can be served there.
    """
    check_address(host, port)
    gradio = load_gradio()
    middleware = importlib.import_module("starlette.middleware").Middleware
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
            app_kwargs={"middleware": [middleware(OwnHostOnly)]},
        )
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: nothing can be served there ({error})") from error
    if not block:
        return
    with suppress(KeyboardInterrupt):
        write(f"The page is at http://{host}:{port}; Ctrl-C ends it.\n")
        threading.Event().wait()
    # Not Gradio's own way to wait: it leaves the connections of open tabs, and then waits for them.
    page.blocks.close(verbose=False)
