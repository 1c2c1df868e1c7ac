"""Human ratings of dialogues and replies: prepared datasets, a format of JSON lines, and files of user feedback.

A line of a ratings file is a conversation in ``messages`` (``role`` and ``content``), with ``ratings`` by name: of the
conversation, beside ``messages``, or of single replies, in messages of the assistant. Optional are its ``id``, and the
``system`` that replied. Lines of user feedback (:mod:`rl4dialog.core.feedback`) rate single replies or conversations.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.feedback import Feedback
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn, is_number, is_whole_number
from rl4dialog.data.chitchat import read_chitchat
from rl4dialog.data.dstc9 import read_dstc9
from rl4dialog.data.latest_feedback import conversation_of, count_kinds, judged_dialogue, read_latest
from rl4dialog.data.messages import read_messages
from rl4dialog.data.prepared import prepared_folder
from rl4dialog.data.rows import Row, read_rows
from rl4dialog.data.small_talk.ratings import rated_small_talk
from rl4dialog.data.text_files import FilePath, expand_path

Unit = Literal["dialogue", "reply"]

_logger = logging.getLogger(__name__)
_PREPARED: dict[str, Callable[[Path], list[RatedDialogue]]] = {"dstc9": read_dstc9, "chitchat": read_chitchat}
FEEDBACK_RATING = "rating"
"""Name of the ratings in user feedback: 1 for up, -1 for down."""


def load_ratings(source: FilePath, unit: Unit | None = None) -> tuple[Unit, list[RatedDialogue]]:
    """Load rated dialogues or rated replies.

    Args:
        source: ``dstc9`` or ``chitchat``, as prepared by ``rl4dialog prepare``; ``small_talk`` for generated dialogues,
            rated by a rule; or a ratings file.
        unit: Whether to read the ratings of dialogues or of replies; by default those that the source has.

    Returns:
        The unit, and all that have a rating.
    """
    found: dict[Unit, list[RatedDialogue]] = {"dialogue": [], "reply": []}
    if source == "small_talk":
        found["dialogue"], found["reply"] = rated_small_talk()
    elif source in _PREPARED:
        found["dialogue"] = _PREPARED[str(source)](prepared_folder(str(source)))
    else:
        path = expand_path(source)
        first = next(iter(read_rows(path)), None)
        if first is not None and "kind" in first:
            for kind, rated in _of_feedback(path):
                found[kind].append(rated)
        else:
            for number, row in enumerate(read_rows(path)):
                for kind, rated in _of_row(row, number):
                    found[kind].append(rated)
    rated_by_unit = {kind: [each for each in rated if each.ratings] for kind, rated in found.items()}
    units = [kind for kind, rated in rated_by_unit.items() if rated and unit in (None, kind)]
    if not units:
        raise DataError(f"{source} has no ratings of {'dialogues or replies' if unit is None else _plural(unit)}")
    if len(units) > 1:
        raise DataError(f"{source} has ratings of both dialogues and replies; choose one of them (dialogue or reply)")
    return units[0], rated_by_unit[units[0]]


def _plural(unit: Unit) -> str:
    return "dialogues" if unit == "dialogue" else "replies"


def _of_row(row: Row, number: int) -> Iterator[tuple[Unit, RatedDialogue]]:
    """The conversation of a line, if it is rated, and its rated replies."""
    messages = read_messages(row, "messages")
    raw, id = row["messages"], number if row.get("id") is None else row["id"]
    if not is_whole_number(id, at_least=0):
        id = row.text("id")
    system = None if row.get("system") is None else row.text("system")
    if unknown := {message["role"] for message in messages} - {"system", "developer", "user", "assistant"}:
        raise row.error(f"messages of the role {unknown.pop()!r} are not supported here")
    turns: list[Turn] = []
    persona = {"persona": messages[0]["content"]} if messages[0]["role"] in ("system", "developer") else {}
    for position, (message, values) in enumerate(zip(messages, raw, strict=True)):
        is_agent = message["role"] == "assistant"
        if not (is_agent or message["role"] == "user"):
            if values.get("ratings") or position:
                raise row.error("a system message must be the first one, and has no ratings")
            continue
        turns.append(Turn(message["content"], AGENT if is_agent else PARTNER))
        if ratings := _checked(values.get("ratings"), row, f"message {position}"):
            if not is_agent:
                raise row.error(f"message {position} has ratings, but is not a reply (role: {message['role']})")
            dialogue = Dialogue(f"{id}_{position}", tuple(turns), meta_data=dict(persona), n_given=len(turns) - 1)
            yield "reply", RatedDialogue(dialogue, ratings, id, system)
    if ratings := _checked(row.get("ratings"), row, "the conversation"):
        if not any(turn.speaker == AGENT for turn in turns):
            raise row.error("the conversation is rated, but has no message of the role assistant")
        yield "dialogue", RatedDialogue(Dialogue(id, tuple(turns), meta_data=dict(persona)), ratings, id, system)


def _checked(ratings: Any, row: Row, what: str) -> dict[str, float]:
    if ratings is None:
        return {}
    if not isinstance(ratings, Mapping):
        raise row.error(f'the ratings of {what} must be an object such as {{"overall": 4}}, not {shown(ratings)}')
    known = {name: value for name, value in ratings.items() if value is not None}
    for name, value in known.items():
        if not (is_number(value) and abs(value) <= sys.float_info.max):
            raise row.error(f"the rating {name!r} of {what} must be a finite number or null, not {shown(value)}")
    return {name: float(value) for name, value in known.items()}


def _of_feedback(path: Path) -> Iterator[tuple[Unit, RatedDialogue]]:
    """The rated replies and conversations of a feedback file; the last rating holds."""
    latest = read_latest(path)
    if others := [each for each in latest if each.rating is None]:
        _logger.warning(
            "%s: %s: only ratings are read here; the datapool feedback reads all", path, count_kinds(others)
        )
    for each in latest:
        if each.rating is not None:
            yield "dialogue" if each.rates_conversation else "reply", rated_dialogue(each)


def rated_dialogue(feedback: Feedback) -> RatedDialogue:
    """A rating of user feedback as a rated reply or conversation."""
    assert feedback.rating is not None
    (reply,) = feedback.replies
    ratings = {FEEDBACK_RATING: float(feedback.rating)}
    return RatedDialogue(judged_dialogue(feedback, reply.text), ratings, conversation_of(feedback), reply.model)
