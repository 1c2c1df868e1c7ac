"""Queues of replies that people are to judge, single ones or pairs, as lines of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.feedback import Feedback, JudgedReply, replies_of
from rl4dialog.core.json_lines import whole_lines, write_records

VERSION = 1
_KEYS = ("version", "id", "turns", "replies", "persona", "strategy", "score")


@dataclass(frozen=True)
class QueuedReplies:
    """One reply to rate, or two to choose from, after the same turns.

    Attributes:
        id: Unique id.
        turns: The conversation before the replies, oldest turn first.
        replies: One reply or two, in the order in which they are shown.
        persona: The model's persona.
        strategy: How they were selected.
        score: By which number; ``None`` if they were selected at random.
    """

    id: str
    turns: Sequence[str]
    replies: Sequence[JudgedReply]
    persona: str | None = None
    strategy: str = "random"
    score: float | None = None

    @property
    def is_pair(self) -> bool:
        """Whether there are two replies to choose from."""
        return len(self.replies) == 2

    def chosen(self, index: int) -> Feedback:
        """The choice of one of two replies as feedback.

        Raises:
            DataError: If there are not two, or they are invalid.
        """
        return Feedback("preference", self.turns, self.replies, chosen=index, persona=self.persona)

    def rated(self, index: int, rating: int) -> Feedback:
        """A rating of one of the replies as feedback: 1 for up, -1 for down.

        Raises:
            DataError: If it is invalid.
        """
        return Feedback("rating", self.turns, [self.replies[index]], rating=rating, persona=self.persona)

    def corrected(self, index: int, correction: str) -> Feedback:
        """A correction of one of the replies as feedback.

        Raises:
            DataError: If the correction is empty.
        """
        reply = self.replies[index]
        return Feedback("correction", self.turns, [reply], correction=correction, persona=self.persona)

    def is_judged_by(self, feedback: Feedback) -> bool:
        """Whether feedback is what was asked for: a choice between two replies, or a judgement of a single one."""
        if (feedback.kind == "preference") != self.is_pair:
            return False
        if (feedback.persona, list(feedback.turns)) != (self.persona, [*self.turns]):
            return False
        return {reply.text for reply in feedback.replies} == {reply.text for reply in self.replies}


def queue_id(persona: str | None, turns: Sequence[str], texts: Sequence[str]) -> str:
    """The id of replies to turns."""
    return content_hash([persona or "", *turns, *texts])[:32]


def write_queue(path: Path, queue: Iterable[QueuedReplies]) -> None:
    """Write a queue; an existing file is replaced.

    Raises:
        RunFolderError: If it cannot be written.
    """
    write_records(path, ({"version": VERSION, **asdict(each)} for each in queue))


def read_queue(path: Path) -> list[QueuedReplies]:
    """Read a queue.

    Raises:
        DataError: If the file cannot be read, is empty, or a line is invalid; the message contains its number.
    """
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    queue = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not queue:
        raise DataError(f"{path} has no replies to judge; rl4dialog select writes them")
    return queue


def read_pairs(path: Path) -> list[QueuedReplies]:
    """Read a queue of pairs.

    Raises:
        DataError: As for :func:`read_queue`, or if there are single replies.
    """
    queue = read_queue(path)
    if not all(each.is_pair for each in queue):
        raise DataError(f"{path} has single replies, but pairs are needed; write them with rl4dialog select")
    return queue


def _parsed(line: bytes, place: str) -> QueuedReplies:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict) or set(record) != set(_KEYS):
        raise DataError(f"{place}: a line needs exactly the keys {', '.join(_KEYS)}, not {shown(record)}")
    if record.pop("version") != VERSION:
        raise DataError(f"{place}: version must be {VERSION}")
    try:
        queued = QueuedReplies(**{**record, "replies": replies_of(record["replies"])})
        if len(queued.replies) == 1:
            queued.rated(0, 1)
        else:
            queued.chosen(0)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    return queued
