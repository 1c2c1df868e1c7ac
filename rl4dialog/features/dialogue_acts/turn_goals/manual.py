"""A person's rating of a conversation as its reward, asked for in the terminal or on a web page.

The counterpart of convogym's ManualReward (https://github.com/af1tang/convogym).
"""

from __future__ import annotations

import html
import os
import queue
import secrets
import threading
from collections.abc import Callable
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from rl4dialog.core.arguments import Count
from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError, RewardError, shown
from rl4dialog.core.files import append_record, json_object, whole_lines
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.types import SPEAKERS, Dialogue
from rl4dialog.core.untrusted import visible
from rl4dialog.core.yaml_loader import packaged_yaml

_PAGE, _FORM = packaged_yaml(Path(__file__).with_suffix(".yaml")).values()


class ManualRating(BatchedConversationReward):
    """A person's rating at the end of each conversation of training, for the goals of turns.

    A rating is in the file before it is paid. A conversation whose rating is there is not asked for again, so a run
    that was killed continues with what was rated. Evaluations, which nobody rates, have no return.

    Args:
        path: File of the ratings, one JSON object a line; created if needed.
        lowest: Lowest rating of the scale.
        highest: Highest rating of the scale.
        port: Ask on a web page at this port of this machine, instead of in the terminal.
        pays_now: Whether turns are paid when they are over, as for the goals of turns; passed by the toolkit.
    """

    asks_people = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        lowest: float = 1.0,
        highest: float = 5.0,
        port: Count | None = None,
        pays_now: bool = False,
    ) -> None:
        if not pays_now:
            raise ConfigError(
                "reward 'manual_rating' asks a person about each conversation; it is for env.id: turn_goals"
            )
        if not lowest < highest:
            raise ConfigError(f"reward 'manual_rating': lowest, {lowest:g}, must be below highest, {highest:g}")
        self._path, self._lowest, self._highest, self._port = Path(path).expanduser(), lowest, highest, port
        self._known = self._read()

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        return [self._rating(dialogue) if over else 0.0 for dialogue, over in zip(dialogues, overs, strict=True)]

    def _read(self) -> dict[str, float]:
        known = {}
        for number, line in enumerate(whole_lines(self._path) if self._path.exists() else (), start=1):
            try:
                record = json_object(line)
                known[str(record["conversation"])] = self._checked(record["rating"])
            except (KeyError, ValueError, ConfigError) as error:
                raise DataError(f"{self._path}:{number}: not a rating of this run: {error}") from error
        return known

    def _checked(self, given: Any) -> float:
        try:
            rating = float(given)
        except (TypeError, ValueError):
            rating = float("nan")
        if not self._lowest <= rating <= self._highest:
            raise ConfigError(f"a rating is a number from {self._lowest:g} to {self._highest:g}, not {shown(given)}")
        return rating

    def _rating(self, dialogue: Dialogue) -> float:
        turns = [{"speaker": SPEAKERS[turn.speaker], "text": turn.text} for turn in dialogue.turns]
        key = content_hash([text for turn in turns for text in turn.values()])[:32]
        if key not in self._known:
            text = "\n".join(f"{turn['speaker']}: {turn['text']}" for turn in turns)
            rating = self._asked(key, f"{text}\n")
            append_record(self._path, {"conversation": key, "rating": rating, "turns": turns})
            self._known[key] = rating
        return self._known[key]

    def _asked(self, key: str, text: str) -> float:
        label, problem = f"Rating ({self._lowest:g} to {self._highest:g}):", ""
        while True:
            given = self._ask(key, f"{text}{problem}", label).strip()
            try:
                return self._checked(given)
            except ConfigError as error:
                problem = f"{error}\n"

    @cached_property
    def _ask(self) -> Callable[[str, str, str], str]:
        return _in_terminal if self._port is None else _RatingPage(self._port).ask


def _in_terminal(key: str, text: str, label: str) -> str:
    print(f"\n{visible(text)}", end="")
    try:
        return input(f"{label} ")
    except EOFError as error:
        raise RewardError(
            "reward 'manual_rating' waits for a rating, but the input is at its end; what was rated is kept, and "
            "--resume continues in a terminal, or with reward_fn.args.port on a page"
        ) from error


class _RatingPage:
    """A page of this machine, with the conversation that waits for a rating."""

    def __init__(self, port: int) -> None:
        page, hosts = self, {f"{name}:{port}" for name in ("localhost", "127.0.0.1")}
        self._given: queue.Queue[tuple[str, str]] = queue.Queue()
        self._secret, self._form = secrets.token_hex(8), ""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                refresh = "" if page._form else '<meta http-equiv="refresh" content="2">'
                body = page._form or "The next conversation is on its way ..."
                self._answer(_PAGE.format(refresh=refresh, body=body))

            def do_POST(self) -> None:
                size = min(int(self.headers.get("Content-Length") or 0), 10_000)
                found = parse_qs(self.rfile.read(size).decode("utf-8", "replace"))
                page._given.put((found.get("key", [""])[0], found.get("rating", [""])[0]))
                self._answer(_PAGE.format(refresh='<meta http-equiv="refresh" content="1; url=/">', body="Thank you."))

            def _answer(self, text: str) -> None:
                # Pages of other origins can neither read this one, nor guess what its form sends.
                is_own = self.headers.get("Host") in hosts
                self.send_response(200 if is_own else 403)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(text.encode("utf-8", "replace") if is_own else b"")

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise RewardError(f"reward 'manual_rating': port {port} cannot be used: {error.strerror}") from error
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"Rate the conversations at http://localhost:{port}")

    def ask(self, key: str, text: str, label: str) -> str:
        wanted = f"{self._secret}{key}"
        self._form = _FORM.format(text=html.escape(text), key=wanted, label=html.escape(label))
        while True:
            given, rating = self._given.get()
            if given == wanted:  # not from a page that was out of date
                self._form = ""
                return rating
