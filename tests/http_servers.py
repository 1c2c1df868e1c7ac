"""A server on this machine for the partner ``http``, whose answers a test decides."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request: its body, and ways to answer it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    behave: Behaviour
    requests: list[bytes]
    clients: set[tuple[str, int]]
    body = b""

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(self.body)
        self.clients.add(self.client_address)
        type(self).behave(self)

    def send(self, content: str | bytes, status: int = 200, n_bytes: int | None = None, **headers: str) -> None:
        """Send an answer that promises ``n_bytes``, by default those that it has."""
        data = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if n_bytes is None else n_bytes))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = n_bytes is not None

    def log_message(self, *args: Any) -> None:
        """Stay silent."""


class Server:
    """Answers with what ``behave`` sends; keeps the bodies of the requests and the addresses that sent them."""

    def __init__(self, behave: Behaviour) -> None:
        self.requests: list[bytes] = []
        self.clients: set[tuple[str, int]] = set()
        members = {"behave": staticmethod(behave), "requests": self.requests, "clients": self.clients}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), members))
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client: None  # type: ignore[method-assign]  # a client that left
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/reply"

    def sent(self) -> list[dict[str, Any]]:
        """The requests, read as JSON."""
        return [json.loads(body) for body in self.requests]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def saying(**answer: Any) -> Behaviour:
    """Always give the same answer, in JSON."""
    return lambda handler: handler.send(json.dumps(answer))


def flood(handler: Handler) -> None:
    """Answer with a gigabyte, as long as the client reads."""
    handler.send(b"", n_bytes=2**30)
    for _ in range(2**10):
        handler.wfile.write(bytes(2**20))


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
