"""A server on this machine for the partner ``http``, whose answers a test decides."""

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request: its body, and ways to answer it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    behave: Behaviour
    requests: list[bytes]
    clients: set[tuple[str, int]]
    body = b""

    def do_POST(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(self.body)
        self.clients.add(self.client_address)
        type(self).behave(self)

    do_GET = do_POST

    def send(self, content, status=200, n_bytes=None, **headers):
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

    def log_message(self, *args):
        """Stay silent."""


class Server:
    """Answers with what ``behave`` sends; keeps the bodies of the requests and the addresses that sent them."""

    def __init__(self, behave):
        self.requests = []
        self.clients = set()
        members = {"behave": staticmethod(behave), "requests": self.requests, "clients": self.clients}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), members))
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client: None  # a client that left
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/reply"

    def sent(self):
        """The requests, read as JSON."""
        return [json.loads(body) for body in self.requests]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


def saying(**answer):
    """Always give the same answer, in JSON."""
    return lambda handler: handler.send(json.dumps(answer))


def flood(handler):
    """Answer with a gigabyte, as long as the client reads."""
    handler.send(b"", n_bytes=2**30)
    for _ in range(2**10):
        handler.wfile.write(bytes(2**20))


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        return port
