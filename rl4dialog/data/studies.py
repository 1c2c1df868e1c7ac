"""Studies: raters answer one question about each item of a queue, or about conversations that they have had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr

from rl4dialog.core.arguments import parsed
from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import Feedback, QueuedReplies, queue_id
from rl4dialog.core.yaml_loader import load_yaml

T = TypeVar("T")
_Text = Annotated[StrictStr, Field(pattern=r"\S")]


@dataclass(frozen=True)
class Study:
    """What raters read and answer, as in a YAML file."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    title: _Text  # also names the study in the file of answers
    instructions: StrictStr
    question: _Text
    raters_per_item: Annotated[StrictInt, Field(ge=1)]
    consent: StrictStr = ""  # what raters agree to before they begin
    scale: dict[StrictInt, StrictStr] | None = None  # ratings and their labels; without it, the better of two is chosen
    no_difference: StrictBool = True  # whether "no difference" is an answer about two replies

    def __post_init__(self) -> None:
        _check_scale(self.scale or (1, 2))

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Lowest and highest rating."""
        return None if self.scale is None else (min(self.scale), max(self.scale))

    def items(self, queue: Iterable[QueuedReplies]) -> dict[str, QueuedReplies]:
        """The different items of a queue, all of which must be of the kind that the question is about."""
        found = {item_of(each): each for each in queue}
        kinds = {"pair" if each.is_pair else "conversation" if each.is_conversation else "reply" for each in queue}
        if len(kinds) > 1 or (kinds == {"pair"}) != (self.scale is None):
            needed = "pairs (--unit pair)" if self.scale is None else "either replies or conversations (--unit reply)"
            about = "without a scale, the study" if self.scale is None else "a study with a scale"
            raise ConfigError(f"{about} needs a queue of {needed} alone; this one has: {', '.join(sorted(kinds))}")
        return found


@dataclass(frozen=True)
class TalkStudy:
    """What people read who talk to two models, each in several conversations about goals, and rate them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    title: _Text  # also names the study in the file of answers
    instructions: StrictStr
    question: _Text  # about each conversation
    scale: dict[StrictInt, StrictStr]  # ratings and their labels
    consent: StrictStr = ""
    conversations: Annotated[StrictInt, Field(ge=2, multiple_of=2)] = 4  # of each person, half with each model
    max_messages: Annotated[StrictInt, Field(ge=1)] = 12  # of a person in a conversation
    goal_key: StrictStr = "partner_persona"  # key of the goal in the meta data of the run's samples
    split: Literal["train", "val", "test"] = "test"  # whose goals they are

    def __post_init__(self) -> None:
        _check_scale(self.scale)


def _check_scale(scale: Iterable[int]) -> None:
    values = [*scale]
    if len(values) < 2 or values != [*range(values[0], values[-1] + 1)]:
        raise DataError(f"scale must have at least two ratings in steps of 1, lowest first, not {values}")


def read_study(path: Path, kind: type[T] = Study) -> T:  # type: ignore[assignment]
    return parsed(kind, load_yaml(path), str(path))


def rater_of(name: str) -> str:
    """The name of a rater, of which case and spaces do not matter."""
    found = " ".join(name.split()).casefold()
    if not 0 < len(found) <= 100 or not found.isprintable():
        raise ConfigError("please enter your name or number, of at most 100 characters")
    return found


def item_of(judged: Feedback | QueuedReplies) -> str:
    """What tells an item from others of its study, in whatever order its replies were shown."""
    answer = [] if judged.answer is None else [judged.answer]
    return queue_id(judged.persona, judged.turns, [*texts_of(judged), *answer])


def texts_of(judged: Feedback | QueuedReplies) -> list[str]:
    return sorted((reply.text for reply in judged.replies), key=lambda text: content_hash([text]))
