"""Comments and replies in files, such as exports of a forum."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import SplitPath, file_readers, read_split
from rl4dialog.tasks.comment_reply.grammar import CommentReply
from rl4dialog.tasks.comment_reply.rudeness import MILD, POLITE, STRONG, rudeness_of

_logger = logging.getLogger(__name__)

REMOVED = ("[deleted]", "[removed]")
"""Reddit's texts in place of comments that no longer exist."""


def read_replies(
    split: str,
    path: SplitPath,
    dialogue_format: DialogueFormat,
    parent_column: str = "parent",
    reply_column: str = "reply",
    score_column: str | None = None,
    rudeness_column: str | None = None,
    held_out_share: float | None = None,
    split_seed: int = 0,
) -> Iterator[CommentReply]:
    """Read the replies of one split.

    Rows whose comment or reply was removed (`REMOVED`) are left out; their number is logged as a warning.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: CSV or JSON files; see `rl4dialog.data.splits.file_readers`.
        dialogue_format: Format of the prompts, whose markup the texts must not contain.
        parent_column: Column with the comment.
        reply_column: Column with the reply.
        score_column: Column with the reply's upvotes; ``None`` if they are not needed.
        rudeness_column: Column with the level of its rudeness; by default it is judged by its words.
        held_out_share: Share of ``train`` for each of ``val`` and ``test`` without a file.
        split_seed: Random seed of this sampling.
    """
    n_removed = 0
    for row in read_split(split, file_readers(path), str(path), held_out_share, split_seed):
        comment, reply = (_text(row, column, dialogue_format) for column in (parent_column, reply_column))
        if comment in REMOVED or reply in REMOVED:
            n_removed += 1
            continue
        rudeness = rudeness_of(reply) if rudeness_column is None else _rudeness(row, rudeness_column)
        yield CommentReply(comment, reply, rudeness, None if score_column is None else _number(row, score_column))
    if n_removed:
        _logger.warning("%s, %s: %d replies were left out, because a text was removed", path, split, n_removed)


def _text(row: Row, column: str, dialogue_format: DialogueFormat) -> str:
    text = row.text(column).strip()
    if not text:
        raise row.error(f"column {column!r} is empty; it must contain a text")
    try:
        dialogue_format.check_said(text)
    except DataError as error:
        raise row.error(f"column {column!r}: {error}") from error
    return text


def _number(row: Row, column: str) -> float:
    try:
        number = float(row.text(column))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise row.error(f"column {column!r} must contain a number, not {row[column]!r}")
    return number


def _rudeness(row: Row, column: str) -> int:
    number = _number(row, column)
    if number not in (POLITE, MILD, STRONG):
        raise row.error(f"column {column!r} must contain {POLITE}, {MILD} or {STRONG}, not {row[column]!r}")
    return int(number)
