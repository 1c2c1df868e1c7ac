"""Servers of this machine: where they listen, a filter of requests in front of them, and the page.

The filter accepts only small requests, and none from pages of other sites. Those can make a visitor's browser send
requests to this server, but with the other site's name in ``Origin``, or in ``Host`` after DNS rebinding: browsers set
both headers, so a page cannot forge them.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.serving.page import Page, load_gradio

MAX_BODY_BYTES = 2**20
_MAX_READ_BYTES = 16 * MAX_BODY_BYTES  # of a request that is refused
# Gradio compiles templates with eval. No request may go to another host, whatever a dependency does.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'self'; form-action 'self'"
)
# The only routes that the page posts to. Gradio has more, such as file uploads.
_POSTED = re.compile(r"/gradio_api/(queue/join|run/\w+|cancel|reset)/?")
_READING = ("GET", "HEAD")
_ANY_ADDRESS = ("0.0.0.0", "::", "")

_STYLE, _SCRIPT = (Path(__file__).with_name(f"page.{ending}") for ending in ("css", "js"))

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Any], Awaitable[None]]


class Address:
    """Where a server listens, and the host names that it answers to: its own, and others such as those of a proxy.

    If it listens on a wildcard address, every IP address is allowed, because DNS rebinding needs a host name. Another
    name without a port is allowed with every port.
    """

    def __init__(self, host: str, port: int, others: Sequence[str] = ()) -> None:
        self.host, self.port, self._is_any_address = host, port, host in _ANY_ADDRESS
        written = f"[{host}]" if ":" in host else host.lower()
        self.url = f"http://{written}:{port}"
        self._names = {"localhost", "127.0.0.1", "[::1]", *([] if self._is_any_address else [written])}
        self._others = set()
        for other in others:
            if (found := _split(other)) is None:
                raise ConfigError(
                    f"--allow_host must be a name such as chat.example.org, or a name and a port such as "
                    f"localhost:8080, not {other!r}"
                )
            self._others.add(found)

    def check(self) -> None:
        """Check that a server can listen there."""
        if not 0 < self.port < 65536:
            raise ConfigError(f"--port must be a number from 1 to 65535, not {self.port}")
        try:
            kind, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(kind) as listener:
                # Allows a port that was closed a moment ago.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> ConfigError:
        other_host = "" if self.host == "127.0.0.1" else ", or --host 127.0.0.1"
        why = f"cannot listen there ({error.strerror or error}); try another --port{other_host}"
        return ConfigError(f"--host {self.host} --port {self.port}: {why}")

    def allow(self, host: str) -> bool:
        """Whether a ``Host`` header, with or without a port, belongs to the page."""
        found = _split(host)
        if found is None:
            return False
        name, port = found
        if found in self._others or (name, None) in self._others:
            return True
        is_own = name in self._names
        if self._is_any_address:
            with suppress(ValueError):
                ipaddress.ip_address(name.strip("[]"))
                is_own = True
        return is_own and (80 if port is None else port) == self.port


class PageGuard:
    """ASGI middleware that answers the page's own requests and refuses all others."""

    command = "rl4dialog ui"
    posted = _POSTED  # routes that may be posted to
    headers: ClassVar[Mapping[str, str]] = {"content-security-policy": _POLICY}  # added to each answer

    def __init__(self, app: App, address: Address) -> None:
        self._app, self._address = app, address

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        from starlette.datastructures import Headers, MutableHeaders

        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope, Headers(scope=scope))
        if scope["method"] not in _READING:
            # Also if it is refused: a client that is still sending would lose the answer.
            body = await _whole_body(receive)
            if body is None and refusal is None:
                refusal = 413, f"requests are limited to {MAX_BODY_BYTES} bytes"
            receive = _replayed(body or b"", receive)
        if refusal is not None:
            await self.refused(*refusal)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def refused(self, status: int, reason: str) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(reason, status, {"connection": "close"})

    def _refusal(self, scope: Message, headers: Any) -> tuple[int, str] | None:
        """Status and reason if a request is not one of the page's own."""
        host, origin = headers.get("host", ""), headers.get("origin")
        # With two Host headers, this check and the server could each read a different one.
        if len(headers.getlist("host")) != 1 or not self._address.allow(host):
            return 403, f"host {host!r} is not allowed; add it with: {self.command} --allow_host NAME"
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, f"requests from pages of {origin!r} are not allowed"
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in _READING:
            return 403, "requests from pages of other sites are not allowed"
        is_posted = scope["method"] == "POST" and self.posted.fullmatch(scope["path"])
        if scope["method"] not in _READING and not is_posted:
            return 403, "only the page's own requests are allowed; it accepts no file uploads"
        return None


def _split(host: str) -> tuple[str, int | None] | None:
    """Split a host into name and port; ``None`` if it is invalid."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", host.lower(), re.ASCII)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))


async def _whole_body(receive: Receive) -> bytes | None:
    """Read the body of a request; ``None`` if it is too large, whatever its headers claim."""
    body, n_bytes, continues = b"", 0, True
    while continues and n_bytes <= _MAX_READ_BYTES:
        message = await receive()
        n_bytes += len(part := message.get("body", b""))
        body += part if n_bytes <= MAX_BODY_BYTES else b""
        continues = message["type"] == "http.request" and message.get("more_body", False)
    return body if n_bytes <= MAX_BODY_BYTES else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that yields a body that was already read, then all further messages."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def serve(page: Page[Any], address: Address, write: Callable[[str], None], block: bool = True) -> None:
    """Serve the page until Ctrl-C, or in a thread until ``page.blocks.close()``, without requests to other hosts."""
    gradio = load_gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    try:
        page.blocks.queue(default_concurrency_limit=1).launch(
            server_name=address.host,
            server_port=address.port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            _frontend=False,  # else it asks itself for the page, and gives up on a busy machine
            pwa=False,
            enable_monitoring=False,
            footer_links=[],
            show_error=True,
            theme=gradio.themes.Default(primary_hue="blue", **fonts),
            css_paths=_STYLE,
            head=f"<script>{_SCRIPT.read_text(encoding='utf-8')}</script>",
        )
    except OSError as error:
        raise address.unusable(error) from error
    # In front of Gradio's own middleware, which would answer some requests itself.
    app = page.blocks.app
    app.middleware_stack = PageGuard(app.middleware_stack or app.build_middleware_stack(), address)
    if not block:
        return
    with suppress(KeyboardInterrupt):
        write(f"The page is at {address.url}; press Ctrl-C to stop.\n")
        threading.Event().wait()
    # Gradio's own wait would block on the connections of open tabs.
    page.blocks.close(verbose=False)
