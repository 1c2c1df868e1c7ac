"""User feedback: ratings of replies and conversations, choices and corrections, as lines of a file."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, RunFolderError, nearest_hint, shown
from rl4dialog.core.files import json_value
from rl4dialog.core.json_lines import append_record, check_appendable, whole_lines

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
    """One item of feedback.

    Attributes:
        kind: ``rating``, ``preference``, ``correction`` or ``conversation_rating``.
        turns: The conversation before the reply, oldest turn first.
        replies: One reply; for a preference, the two compared replies; for a whole conversation, the model's last one.
        answer: For a whole conversation: what the partner said after the last reply, if anything.
        rating: For a rating, of a reply or a whole conversation: 1 for up, -1 for down.
        chosen: For a preference: index of the better reply, 0 or 1.
        correction: For a correction: the corrected reply.
        persona: The model's persona.
        withdrawn: Whether the person takes this judgement back, which was given before.
        time: Time in ISO 8601 format.
        id: Unique id.
    """

    kind: str
    turns: Sequence[str]
    replies: Sequence[JudgedReply]
    rating: int | None = None
    chosen: int | None = None
    correction: str | None = None
    persona: str | None = None
    answer: str | None = None
    withdrawn: bool = False
    time: str = field(default_factory=lambda: _now())
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
    """Convert the replies of a line back.

    Raises:
        DataError: If they are invalid.
    """
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
