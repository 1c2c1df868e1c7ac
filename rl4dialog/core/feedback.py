"""User feedback: ratings, choices and corrections as lines of a file; and queues of what people are to judge."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, StrictBool, StrictFloat, StrictInt

from rl4dialog.core.arguments import parsed
from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import DataError, RunFolderError, nearest_hint, shown
from rl4dialog.core.files import (
    append_record,
    check_appendable,
    json_object,
    whole_lines,
    write_records,
    written_path,
)

T = TypeVar("T")
VERSION = 1
_CONVERSATION = "conversation_rating"
KINDS = ("rating", "preference", "correction", _CONVERSATION)
_VERDICTS = {"preference": "chosen", "correction": "correction"}  # keys of the results of kinds other than ratings
_ALLOWED = {"rating": (-1, 1), "chosen": (0, 1)}
_OF_STUDIES = ("rater", "study", "scale")
_KNOWN_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class JudgedReply:
    """A reply, and the run or model that generated it."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS
    model: str
    text: str


@dataclass(frozen=True)
class Feedback:
    """One item of feedback."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS
    kind: str  # rating, preference, correction or conversation_rating
    turns: Sequence[str]  # the conversation before the reply, oldest turn first
    replies: Sequence[JudgedReply]  # one; the two of a preference; the model's last one of a whole conversation
    rating: StrictInt | None = None  # of a reply or a whole conversation: 1 for up, -1 for down, or of the scale
    chosen: StrictInt | None = None  # index of the preferred reply; in a study ``None`` for no difference
    correction: str | None = None
    persona: str | None = None
    answer: str | None = None  # what the partner said after the last reply of a whole conversation, if anything
    withdrawn: StrictBool = False  # whether the person takes this judgement back, which was given before
    rater: str | None = None  # who judged in a study
    study: str | None = None  # title of the study
    scale: tuple[StrictInt, StrictInt] | None = None  # lowest and highest rating of the study
    time: str = field(default_factory=lambda: _now())  # in ISO 8601 format
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = nearest_hint(self.kind, KINDS)
            raise DataError(f"kind must be one of {', '.join(KINDS)}, not {shown(self.kind)}{hint}")
        what, n_replies = f"a {in_words(self.kind)}", 2 if self.kind == "preference" else 1
        if len(self.replies) != n_replies:
            raise DataError(f"{what} needs {n_replies} in replies, not {len(self.replies)}")
        if not (self.turns or self.rates_conversation):  # a whole conversation can start with the reply
            raise DataError("turns must be a list of at least one text, not []")
        if self.answer is not None and not self.rates_conversation:
            raise DataError(f"{what} has no answer, which is what the partner said after a {_CONVERSATION}")
        for name in ("rating", "chosen", "correction"):
            value = getattr(self, name)
            if name != self._verdict:
                if value is not None:
                    raise DataError(f"{what} has no {name}")
            elif name == "rating" and self.scale is not None:
                lowest, highest = self.scale
                if value is None or not lowest <= value <= highest:
                    raise DataError(f"rating must be from {lowest} to {highest}, not {shown(value)}")
            elif name in _ALLOWED and value not in _ALLOWED[name] and not (name == "chosen" and self.is_tie):
                raise DataError(f"{name} must be {' or '.join(map(str, _ALLOWED[name]))}, not {shown(value)}")
            elif name == "correction" and not (value or "").strip():
                raise DataError(f"correction must be a text, not {shown(value)}")
        if (self.rater is None) != (self.study is None) or (self.scale is not None and self.study is None):
            raise DataError("rater and study belong together, and scale needs them")

    @property
    def _verdict(self) -> str:
        return _VERDICTS.get(self.kind, "rating")

    @property
    def rates_conversation(self) -> bool:
        """Whether a whole conversation is rated, not its last reply."""
        return self.kind == _CONVERSATION

    @property
    def is_tie(self) -> bool:
        """Whether a rater of a study saw no difference between two replies."""
        return self.kind == "preference" and self.chosen is None and self.study is not None

    def check_is_no_answer(self, place: str) -> None:
        """Refuse the answers of a study, of which each item has several."""
        if self.study is not None:
            cure = "rl4dialog study-results writes one judgement per item from them"
            raise DataError(f"{place} has the single answers of the raters of a study; {cure}")

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
        others = {"rating", "chosen", "correction"} - {self._verdict}
        if not self.rates_conversation:
            others.add("answer")
        others.update(name for name in ("withdrawn", *_OF_STUDIES) if not getattr(self, name))
        return {"version": VERSION, **{key: value for key, value in asdict(self).items() if key not in others}}


def check_feedback_file(path: Path, study: str | None = None) -> None:
    """Check that feedback can be appended to a file: that it does not exist, is empty, or has such feedback."""

    def is_feedback(line: bytes) -> bool:
        try:
            return _parsed(line, "", Feedback).study == study
        except DataError:
            return False

    path = written_path(path)
    try:
        check_appendable(path, is_feedback)
    except (OSError, RunFolderError) as error:
        whose = "" if study is None else f" of the study {study!r}"
        choose = "choose another --feedback; answers to a study have a file of their own"
        raise DataError(f"{path} is not a file of feedback{whose}, and is left as it is; {choose}") from error


def append_feedback(path: Path, feedback: Feedback) -> None:
    """Append an item to a file, and sync it to disk."""
    append_record(path, feedback.record())


def read_feedback(path: Path) -> list[Feedback]:
    """Read all items of a file, in order; a truncated last line is left out, with a warning."""
    return _read(path, Feedback, "; rl4dialog chat, teach and ui write it")


def _read(path: Path, kind: type[T], hint: str = "") -> list[T]:
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}{hint}") from error
    return [_parsed(line, f"{path}:{number}", kind) for number, line in enumerate(lines, start=1) if line.strip()]


def _parsed(line: bytes, place: str, kind: type[T]) -> T:
    try:
        record = json_object(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    return of_record(record, place, kind)


def of_record(record: Mapping[str, Any], place: str, kind: type[T]) -> T:
    """Convert a line of a file back, to feedback or an item of a queue."""
    if "version" not in record:
        what = "not a line that rl4dialog chat, teach, ui or select writes"
        raise DataError(f"{place}: {what}: it has no version, but {shown(list(record))}")
    if record["version"] != VERSION:
        raise DataError(f"{place}: version must be {VERSION}, not {shown(record['version'])}")
    found = parsed(kind, {key: value for key, value in record.items() if key != "version"}, place)
    for each in fields(found):  # type: ignore[arg-type]
        # A line that had no id of its own would be another one at every reading.
        if each.default_factory is not MISSING and each.name not in record:
            raise DataError(f"{place}: the key {each.name!r} is missing")
    return found


def in_words(kind: str) -> str:
    """A kind of feedback for people."""
    return kind.replace("_", " ")


def counted(n: int, kind: str) -> str:
    """A number of judgements of a kind in words, such as ``2 conversation ratings``."""
    return f"{n} {in_words(kind)}{'' if n == 1 else 's'}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


Unit = Literal["pair", "reply", "conversation"]


@dataclass(frozen=True)
class QueuedReplies:
    """One reply to rate, or two to choose from, after the same turns; or a whole conversation to rate."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS
    id: str
    turns: Sequence[str]  # oldest first
    replies: Sequence[JudgedReply]  # in the order in which they are shown; the last one of a whole conversation
    persona: str | None = None
    strategy: str = "random"  # how they were selected
    score: StrictInt | StrictFloat | None = None  # and by which number, if not at random
    is_conversation: StrictBool = False
    answer: str | None = None  # what the partner said after the last reply of a whole conversation, if anything

    def __post_init__(self) -> None:
        if len(self.replies) == 1:
            self.rated(0, 1)
        elif self.is_conversation:
            raise DataError("is_conversation is only true with one reply, the last one")
        else:
            self.chosen(0)

    @property
    def is_pair(self) -> bool:
        """Whether there are two replies to choose from."""
        return len(self.replies) == 2

    def chosen(self, index: int | None, **of_study: Any) -> Feedback:
        return Feedback("preference", self.turns, self.replies, chosen=index, persona=self.persona, **of_study)

    def rated(self, index: int, rating: int, **of_study: Any) -> Feedback:
        """A rating of one of the replies, or of the whole conversation, as feedback: 1 for up, -1 for down."""
        kind, reply = "conversation_rating" if self.is_conversation else "rating", self.replies[index]
        about = {"persona": self.persona, "answer": self.answer, **of_study}
        return Feedback(kind, self.turns, [reply], rating=rating, **about)

    def corrected(self, index: int, correction: str) -> Feedback:
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
    return content_hash([persona or "", *turns, *texts])[:32]


def write_queue(path: Path, queue: Iterable[QueuedReplies]) -> None:
    """Write a queue; an existing file is replaced."""
    write_records(path, ({"version": VERSION, **asdict(each)} for each in queue))


def read_queue(path: Path) -> list[QueuedReplies]:
    queue = _read(path, QueuedReplies)
    if not queue:
        raise DataError(f"{path} has no replies to judge; rl4dialog select writes them")
    return queue


def read_pairs(path: Path) -> list[QueuedReplies]:
    queue = read_queue(path)
    if not all(each.is_pair for each in queue):
        raise DataError(f"{path} has more than pairs, but pairs are needed; write them with rl4dialog select")
    return queue
