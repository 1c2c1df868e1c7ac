"""User feedback: ratings, choices and corrections as lines of a file; and queues of what people are to judge."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import DataError, RunFolderError, nearest_hint, shown
from rl4dialog.core.files import append_record, check_appendable, json_value, whole_lines, write_records

VERSION = 1
_CONVERSATION = "conversation_rating"
_N_REPLIES = {"rating": 1, "preference": 2, "correction": 1, _CONVERSATION: 1}
KINDS = tuple(_N_REPLIES)


@dataclass(frozen=True)
class JudgedReply:
    """A reply, and the run or model that generated it."""

    model: str
    text: str


@dataclass(frozen=True)
class Feedback:
    """One item of feedback."""

    kind: str  # rating, preference, correction or conversation_rating
    turns: Sequence[str]  # the conversation before the reply, oldest turn first
    replies: Sequence[JudgedReply]  # one; the two of a preference; the model's last one of a whole conversation
    rating: int | None = None  # of a reply or a whole conversation: 1 for up, -1 for down
    chosen: int | None = None  # index of the preferred reply
    correction: str | None = None
    persona: str | None = None
    answer: str | None = None  # what the partner said after the last reply of a whole conversation, if anything
    withdrawn: bool = False  # whether the person takes this judgement back, which was given before
    time: str = field(default_factory=lambda: _now())  # in ISO 8601 format
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise DataError(problem)

    @property
    def rates_conversation(self) -> bool:
        """Whether a whole conversation is rated, not its last reply."""
        return self.kind == _CONVERSATION

    @property
    def utterances(self) -> list[str]:
        """The utterances of a whole conversation, oldest first."""
        answer = [] if self.answer is None else [self.answer]
        return [*self.turns, self.replies[0].text, *answer]

    @property
    def compared(self) -> tuple[str, str] | None:
        """The better and the worse reply, of which a correction is the better one; ``None`` for a rating."""
        texts = [reply.text for reply in self.replies]
        if self.correction is not None:
            return self.correction, texts[0]
        return None if self.chosen is None else (texts[self.chosen], texts[1 - self.chosen])

    def withdrawal(self) -> Feedback:
        """The same judgement, taken back now."""
        return replace(self, withdrawn=True, time=_now(), id=uuid.uuid4().hex)

    def record(self) -> dict[str, Any]:
        """Convert to a line of the file, without keys of other kinds of feedback."""
        others = {"rating", "chosen", "correction"} - {_verdict(self.kind)}
        if not self.rates_conversation:
            others.add("answer")
        if not self.withdrawn:
            others.add("withdrawn")
        return {"version": VERSION, **{key: value for key, value in asdict(self).items() if key not in others}}


def check_feedback_file(path: Path) -> None:
    """Check that feedback can be appended to a file: that it does not exist, is empty, or has feedback."""

    def is_feedback(line: bytes) -> bool:
        try:
            _parsed(line, "")
        except DataError:
            return False
        return True

    try:
        check_appendable(path, is_feedback)
    except (OSError, RunFolderError) as error:
        raise DataError(f"{path} is not a file of feedback, and is left as it is; choose another --feedback") from error


def append_feedback(path: Path, feedback: Feedback) -> None:
    """Append an item to a file, and sync it to disk."""
    append_record(path, feedback.record())


def read_feedback(path: Path) -> list[Feedback]:
    """Read all items of a file, in order; a truncated last line is ignored."""
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; rl4dialog chat, teach and ui write it") from error
    return [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _parsed(line: bytes, place: str) -> Feedback:
    try:
        record = json_value(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: must be a JSON object, not {shown(record)}")
    return feedback_of(record, place)


def feedback_of(record: Mapping[str, Any], place: str) -> Feedback:
    """Convert a line of the file back."""
    values = {key: value for key, value in record.items() if key != "version"}
    if "version" not in record:
        raise DataError(
            f"{place}: not a line of user feedback, which rl4dialog chat, teach and ui write: it has no version, but "
            f"{shown(list(record))}"
        )
    if record["version"] != VERSION:
        raise DataError(f"{place}: version must be {VERSION}, not {shown(record['version'])}")
    for key in values:
        if key not in Feedback.__dataclass_fields__:
            raise DataError(f"{place}: unknown key {key!r}{nearest_hint(key, Feedback.__dataclass_fields__)}")
    missing = [key for key in ("kind", "turns", "replies", "time", "id") if key not in values]
    if missing:
        raise DataError(f"{place}: {missing[0]} is missing")
    try:
        return Feedback(**{**values, "replies": replies_of(values["replies"])})
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def replies_of(values: Any) -> list[JudgedReply]:
    """Convert the replies of a line back."""
    if not isinstance(values, list):
        raise DataError(f"replies must be a list, not {shown(values)}")
    for value in values:
        texts = isinstance(value, Mapping) and set(value) == {"model", "text"}
        if not texts or not all(isinstance(text, str) for text in value.values()):
            raise DataError(f"each of the replies must have model and text, not {shown(value)}")
    return [JudgedReply(**value) for value in values]


def in_words(kind: str) -> str:
    """A kind of feedback for people."""
    return kind.replace("_", " ")


def counted(n: int, kind: str) -> str:
    """A number of judgements of a kind in words, such as ``2 conversation ratings``."""
    return f"{n} {in_words(kind)}{'' if n == 1 else 's'}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _verdict(kind: str) -> str:
    """Key of the result of a kind of feedback."""
    return {"preference": "chosen", "correction": "correction"}.get(kind, "rating")


def _problem(feedback: Feedback) -> str | None:
    """Describe what is wrong with an item; ``None`` if it is valid."""
    if feedback.kind not in KINDS:
        hint = nearest_hint(str(feedback.kind), KINDS)
        return f"kind must be one of {', '.join(KINDS)}, not {shown(feedback.kind)}{hint}"
    turns, is_whole = feedback.turns, feedback.rates_conversation
    # A whole conversation can start with the reply.
    if not isinstance(turns, (list, tuple)) or not (turns or is_whole) or not all(isinstance(t, str) for t in turns):
        return f"turns must be a list of at least one text, not {shown(turns)}"
    if feedback.answer is not None and not (is_whole and isinstance(feedback.answer, str)):
        return f"answer must be a text after the last reply of a {_CONVERSATION}, not {shown(feedback.answer)}"
    n_replies = _N_REPLIES[feedback.kind]
    if len(feedback.replies) != n_replies:
        return f"a {in_words(feedback.kind)} needs {n_replies} in replies, not {len(feedback.replies)}"
    for name, value in (("time", feedback.time), ("id", feedback.id), ("persona", feedback.persona)):
        if not isinstance(value, str) and not (name == "persona" and value is None):
            return f"{name} must be a text, not {shown(value)}"
    if not isinstance(feedback.withdrawn, bool):
        return f"withdrawn must be true or false, not {shown(feedback.withdrawn)}"
    allowed = {"rating": (-1, 1), "chosen": (0, 1)}
    for name in ("rating", "chosen", "correction"):
        value = getattr(feedback, name)
        if name != _verdict(feedback.kind):
            if value is not None:
                return f"a {in_words(feedback.kind)} has no {name}"
        elif name in allowed:
            if isinstance(value, bool) or value not in allowed[name]:
                return f"{name} must be {' or '.join(map(str, allowed[name]))}, not {shown(value)}"
        elif not isinstance(value, str) or not value.strip():
            return f"{name} must be a text, not {shown(value)}"
    return None


Unit = Literal["pair", "reply", "conversation"]

_OF_CONVERSATIONS = {"is_conversation", "answer"}
"""Keys that lines of replies can lack."""


@dataclass(frozen=True)
class QueuedReplies:
    """One reply to rate, or two to choose from, after the same turns; or a whole conversation to rate."""

    id: str
    turns: Sequence[str]  # oldest first
    replies: Sequence[JudgedReply]  # in the order in which they are shown; the last one of a whole conversation
    persona: str | None = None
    strategy: str = "random"  # how they were selected
    score: float | None = None  # and by which number, if not at random
    is_conversation: bool = False
    answer: str | None = None  # what the partner said after the last reply of a whole conversation, if anything

    @property
    def is_pair(self) -> bool:
        """Whether there are two replies to choose from."""
        return len(self.replies) == 2

    def chosen(self, index: int) -> Feedback:
        """The choice of one of two replies as feedback."""
        return Feedback("preference", self.turns, self.replies, chosen=index, persona=self.persona)

    def rated(self, index: int, rating: int) -> Feedback:
        """A rating of one of the replies, or of the whole conversation, as feedback: 1 for up, -1 for down."""
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
    queue = [_queued(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not queue:
        raise DataError(f"{path} has no replies to judge; rl4dialog select writes them")
    return queue


def read_pairs(path: Path) -> list[QueuedReplies]:
    """Read a queue of pairs."""
    queue = read_queue(path)
    if not all(each.is_pair for each in queue):
        raise DataError(f"{path} has more than pairs, but pairs are needed; write them with rl4dialog select")
    return queue


def _queued(line: bytes, place: str) -> QueuedReplies:
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
