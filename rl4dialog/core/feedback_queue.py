"""Queues of what people are to judge, as lines of a file: single replies, pairs of them, or whole conversations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.feedback import Feedback, JudgedReply, replies_of
from rl4dialog.core.files import json_value
from rl4dialog.core.json_lines import whole_lines, write_records

Unit = Literal["pair", "reply", "conversation"]

VERSION = 1
_OF_CONVERSATIONS = {"is_conversation", "answer"}
"""Keys that lines of replies can lack."""


@dataclass(frozen=True)
class QueuedReplies:
    """One reply to rate, or two to choose from, after the same turns; or a whole conversation to rate.

    Attributes:
        id: Unique id.
        turns: The conversation before the replies, oldest turn first.
        replies: One reply or two, in the order in which they are shown; the last one of a whole conversation.
        persona: The model's persona.
        strategy: How they were selected.
        score: By which number; ``None`` if they were selected at random.
        is_conversation: Whether the whole conversation is to be rated, not its last reply.
        answer: For a whole conversation: what the partner said after the last reply, if anything.
    """

    id: str
    turns: Sequence[str]
    replies: Sequence[JudgedReply]
    persona: str | None = None
    strategy: str = "random"
    score: float | None = None
    is_conversation: bool = False
    answer: str | None = None

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
        """A rating of one of the replies, or of the whole conversation, as feedback: 1 for up, -1 for down.

        Raises:
            DataError: If it is invalid.
        """
        kind, reply = "conversation_rating" if self.is_conversation else "rating", self.replies[index]
        return Feedback(kind, self.turns, [reply], rating=rating, persona=self.persona, answer=self.answer)

    def corrected(self, index: int, correction: str) -> Feedback:
        """A correction of one of the replies as feedback."""
        if self.is_conversation:
            raise DataError("a whole conversation is rated up or down; only single replies can be corrected")
        reply = self.replies[index]
        return Feedback("correction", self.turns, [reply], correction=correction, persona=self.persona)

    def is_judged_by(self, feedback: Feedback) -> bool:
        """Whether feedback is what was asked for: a choice, or a judgement of a single reply or whole conversation."""
        if (feedback.kind == "preference", feedback.rates_conversation) != (self.is_pair, self.is_conversation):
            return False
        if (feedback.persona, [*feedback.turns], feedback.answer) != (self.persona, [*self.turns], self.answer):
            return False
        return {reply.text for reply in feedback.replies} == {reply.text for reply in self.replies}


def queue_id(persona: str | None, turns: Sequence[str], texts: Sequence[str]) -> str:
    """The id of replies to turns."""
    return content_hash([persona or "", *turns, *texts])[:32]


def write_queue(path: Path, queue: Iterable[QueuedReplies]) -> None:
    """Write a queue; an existing file is replaced."""
    write_records(path, ({"version": VERSION, **asdict(each)} for each in queue))


def read_queue(path: Path) -> list[QueuedReplies]:
    """Read a queue."""
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    queue = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not queue:
        raise DataError(f"{path} has no replies to judge; rl4dialog select writes them")
    return queue


def read_pairs(path: Path) -> list[QueuedReplies]:
    """Read a queue of pairs."""
    queue = read_queue(path)
    if not all(each.is_pair for each in queue):
        raise DataError(f"{path} has more than pairs, but pairs are needed; write them with rl4dialog select")
    return queue


def _parsed(line: bytes, place: str) -> QueuedReplies:
    try:
        record: Any = json_value(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    keys = {"version", *(each.name for each in fields(QueuedReplies))}
    if not isinstance(record, dict) or set(record) | _OF_CONVERSATIONS != keys:
        raise DataError(f"{place}: a line needs the keys {', '.join(sorted(keys))}, not {shown(record)}")
    if record.pop("version") != VERSION:
        raise DataError(f"{place}: version must be {VERSION}")
    try:
        queued = QueuedReplies(**{**record, "replies": replies_of(record["replies"])})
        if not isinstance(queued.is_conversation, bool) or (queued.is_conversation and len(queued.replies) != 1):
            raise DataError("is_conversation must be true or false, and true only with one reply, the last one")
        if not (isinstance(queued.id, str) and isinstance(queued.strategy, str)):
            raise DataError(f"id and strategy must be texts, not {shown(queued.id)} and {shown(queued.strategy)}")
        if isinstance(queued.score, bool) or not isinstance(queued.score, int | float | None):
            raise DataError(f"score must be a number or null, not {shown(queued.score)}")
        if len(queued.replies) == 1:
            queued.rated(0, 1)
        else:
            queued.chosen(0)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    return queued
