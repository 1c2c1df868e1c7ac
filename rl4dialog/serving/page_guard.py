"""What stands before the page's server: it answers its own page only, takes no files, and no large requests.

A page of another site may have a visitor's browser send requests here. Its requests name that site in ``Origin``, or in
``Host`` where its name was made to point to this machine (DNS rebinding). Browsers write both headers themselves, so no
page can forge them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from rl4dialog.core.errors import ConfigError

MAX_BODY_BYTES = 2**20
# Gradio's own scripts make functions from templates. Nothing may be asked of another host, whatever a package does.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'self'; form-action 'self'"
)
# All that the page itself asks for. Gradio has more, such as a route that keeps files.
_POSTED = re.compile(r"/gradio_api/(queue/join|run/\w+|cancel|reset)/?")
_READING = ("GET", "HEAD")
_ANY_ADDRESS = ("0.0.0.0", "::", "")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class PageHosts:
    """Under which names a page may be asked for.

    Args:
        host: The address that the server listens at. Where that is any of the machine's, each IP address is allowed:
            rebinding needs a name.
        port: The port.
        others: Further names, such as those of a proxy; without a port each of them holds for every port.

    Raises:
        ConfigError: If one of them is no name.
    """

    def __init__(self, host: str, port: int, others: Sequence[str] = ()) -> None:
        self._port, self._is_any_address = port, host in _ANY_ADDRESS
        self._names = {"localhost", "127.0.0.1", "[::1]"}
        if not self._is_any_address:
            self._names.add(f"[{host}]" if ":" in host else host.lower())
        self._others = set()
        for other in others:
            found = _split(other)
            if found is None:
                raise ConfigError(
                    f"--allow_host must be a name such as chat.example.org, or a name and a port such as "
                    f"localhost:8080, not {other!r}"
                )
            self._others.add(found)

    def allow(self, host: str) -> bool:
        """Whether a request for this host, and perhaps port, is one for the page."""
        found = _split(host)
        if found is None:
            return False
        name, port = found
        if found in self._others or (name, None) in self._others:
            return True
        is_own = name in self._names or (self._is_any_address and _is_address(name))
        return is_own and (80 if port is None else port) == self._port


class PageGuard:
    """Answers the requests of the page itself, and refuses all others.

    Args:
        app: Answers requests, as ASGI has it.
        hosts: Under which names the page may be asked for.
    """

    def __init__(self, app: App, hosts: PageHosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None and scope["method"] not in _READING:
            body = await _whole_body(receive)
            if body is None:
                refusal = _too_large()
            else:
                receive = _replayed(body, receive)
        if refusal is not None:
            await _answer(send, *refusal)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY.encode())]
            await send(message)

        await self._app(scope, receive, send_with_policy)

    def _refusal(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and reason, if a request is none of the page's own."""
        host, origin = headers.get("host", ""), headers.get("origin")
        # Two of them would be read one way here and another way behind.
        n_hosts = sum(name.lower() == b"host" for name, _ in scope["headers"])
        if n_hosts != 1 or not self._hosts.allow(host):
            return 403, f"this server does not answer for the host {host!r}; rl4dialog ui --allow_host adds a name"
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, f"a page of {origin!r} may not ask for anything here"
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in _READING:
            return 403, "a page of another site may not ask for anything here"
        is_posted = scope["method"] == "POST" and _POSTED.fullmatch(scope["path"])
        if scope["method"] not in _READING and not is_posted:
            return 403, "the page neither takes files nor anything else but what is said on it"
        with suppress(ValueError):
            if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
                return _too_large()
        return None


def _split(host: str) -> tuple[str, int | None] | None:
    """Name and port of a host; ``None`` if it is none."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", host.lower(), re.ASCII)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _too_large() -> tuple[int, str]:
    return 413, f"a request may have {MAX_BODY_BYTES} bytes at most"


async def _whole_body(receive: Receive) -> bytes | None:
    """The body of a request; ``None`` if it is too large, whatever its headers say."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, and then what else comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def _answer(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
