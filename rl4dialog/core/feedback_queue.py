"""Queues of pairs of replies that people are to judge, as lines of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.feedback import Feedback, JudgedReply, replies_of
from rl4dialog.core.json_lines import whole_lines, write_records

VERSION = 1
_KEYS = ("version", "id", "turns", "replies", "persona", "strategy", "score")


@dataclass(frozen=True)
class QueuedPair:
    """Two replies to the same turns.

    Attributes:
        id: Unique id.
        turns: The conversation before the replies, oldest turn first.
        replies: The two replies, in the order in which they are shown.
        persona: The model's persona.
        strategy: How the pair was selected.
        score: By which number; ``None`` for pairs that were selected at random.
    """

    id: str
    turns: Sequence[str]
    replies: Sequence[JudgedReply]
    persona: str | None = None
    strategy: str = "random"
    score: float | None = None

    def chosen(self, index: int) -> Feedback:
        """The choice of one of the replies as feedback.

        Raises:
            DataError: If the pair is invalid.
        """
        return Feedback("preference", self.turns, self.replies, chosen=index, persona=self.persona)

    def corrected(self, index: int, correction: str) -> Feedback:
        """A correction of one of the replies as feedback.

        Raises:
            DataError: If the correction is empty.
        """
        reply = self.replies[index]
        return Feedback("correction", self.turns, [reply], correction=correction, persona=self.persona)

    def is_judged_by(self, feedback: Feedback) -> bool:
        """Whether feedback is a choice between these two replies."""
        if feedback.kind != "preference" or (feedback.persona, list(feedback.turns)) != (self.persona, [*self.turns]):
            return False
        return {reply.text for reply in feedback.replies} == {reply.text for reply in self.replies}


def write_queue(path: Path, pairs: Iterable[QueuedPair]) -> None:
    """Write a queue; an existing file is replaced.

    Raises:
        RunFolderError: If it cannot be written.
    """
    write_records(path, ({"version": VERSION, **asdict(pair)} for pair in pairs))


def read_queue(path: Path) -> list[QueuedPair]:
    """Read a queue.

    Raises:
        DataError: If the file cannot be read, has no pairs, or a line is invalid; the message contains its number.
    """
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    pairs = [_pair(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not pairs:
        raise DataError(f"{path} has no pairs; rl4dialog select writes them")
    return pairs


def _pair(line: bytes, place: str) -> QueuedPair:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict) or set(record) != set(_KEYS):
        raise DataError(f"{place}: a pair needs exactly the keys {', '.join(_KEYS)}, not {shown(record)}")
    if record.pop("version") != VERSION:
        raise DataError(f"{place}: version must be {VERSION}")
    try:
        pair = QueuedPair(**{**record, "replies": replies_of(record["replies"])})
        pair.chosen(0)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    return pair
