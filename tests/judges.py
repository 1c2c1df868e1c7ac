"""A local server with an OpenAI-compatible endpoint, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-very-secret"
Answer = Callable[[str], tuple[int, str]]


class Endpoint:
    """A local server, and what it was asked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.keys: list[str | None] = []
        self.most_at_once = self._n_now = 0
        self.answer: Answer = lambda question: said("7")
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                question = body["messages"][0]["content"]
                with endpoint._lock:
                    endpoint.questions.append(question)
                    endpoint.keys.append(self.headers["Authorization"])
                    endpoint._n_now += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, endpoint._n_now)
                assert (self.path, body["model"], body["temperature"]) == ("/v1/chat/completions", "wise", 0)
                status, text = endpoint.answer(question)
                with endpoint._lock:
                    endpoint._n_now -= 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def said(text: str) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})
