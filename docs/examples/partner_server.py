"""A server for the partner `http`: the partner of guess_the_picture, behind an address.

    python docs/examples/partner_server.py --port 8000 --yes_no_penalty hard

It answers a request by playing the conversation again from its history. So it keeps nothing between requests: the same
request always gets the same answer, and the server can be restarted during a run.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rl4dialog.features.games.guess_the_picture import GuessThePicturePartner


def answer(request: dict, yes_no_penalty: str) -> dict:
    """Answer the last utterance of a history."""
    partner = GuessThePicturePartner(yes_no_penalty)
    partner.reset(request["meta_data"], request["seed"])
    n_given = len(request["meta_data"]["history"])
    for end in range(n_given + 1, len(request["history"]) + 1, 2):  # after each utterance of the agent
        reply = partner.reply(request["history"][:end])
    return {"text": reply.text, "reward": reply.reward, "over": reply.leaves, "outcome": partner.outcome()}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True  # header and body are sent separately, which would take 40 ms
    yes_no_penalty = "none"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, value = 200, answer(json.loads(body), self.yes_no_penalty)
        except Exception as error:  # a request that is no conversation of this game
            status, value = 400, {"error": f"{type(error).__name__}: {error}"}
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Do not log every request."""


def make_server(port: int, yes_no_penalty: str = "none") -> ThreadingHTTPServer:
    """Bind a port of this machine; 0 chooses a free one."""
    handler = type("Handler", (Handler,), {"yes_no_penalty": yes_no_penalty})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="serve the partner of guess_the_picture")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--yes_no_penalty", default="none", choices=["none", "soft", "hard", "conservative"])
    arguments = parser.parse_args()
    server = make_server(arguments.port, arguments.yes_no_penalty)
    print(f"http://127.0.0.1:{server.server_port}/")
    server.serve_forever()
