"""Comments with one reply each, generated or from files, with a logged reward of the reply.

The rudeness of a generated reply does not depend on the comment. Its upvotes depend only on its rudeness: mildly rude
replies get the most and strongly rude ones the fewest, so that the two rewards disagree about the best reply.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, limit_samples, size_of
from rl4dialog.data.rows import Row
from rl4dialog.data.small_talk.grammar import LISTENER, TELLER, TOPICS, Frame, Phrases, parse_phrases, pick
from rl4dialog.data.splits import HeldOutShare, IndexFiles, SplitPath, file_readers, split_reader

RewardName = Literal["rudeness", "noised", "upvotes", "upvote_count"]

POLITE, MILD, STRONG = 0, 1, 2
_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
WORDS: dict[int, list[str]] = _TABLE["words"]
"""Words of each level of rudeness. The grammar has no other rude words, and uses these in no other sense."""

_SPACE = r"\s+"
_PATTERNS = {
    level: re.compile(rf"(?<!\w)({'|'.join(words).replace(' ', _SPACE)})(?!\w)", re.IGNORECASE)
    for level, words in WORDS.items()
}


def rudeness_of(text: str) -> int:
    """Return the highest level of the rude words in a text: ``POLITE``, ``MILD`` or ``STRONG``.

    Exact for the replies of the grammar. Of other texts, it knows only `WORDS`; an empty text is polite.
    """
    return next((level for level in (STRONG, MILD) if _PATTERNS[level].search(text)), POLITE)


def noised(rudeness: int, rng: random.Random) -> int:
    """Replace ``MILD`` by ``POLITE`` or ``STRONG``, with equal probability (Snell et al. 2022, arXiv 2206.11871)."""
    if rudeness != MILD:
        return rudeness
    return POLITE if rng.random() < 0.5 else STRONG


COMMENTS, REPLIES = parse_phrases(_TABLE["comments"]), parse_phrases(_TABLE["replies"])
BEFORE: dict[int, list[str]] = _TABLE["before"]
AFTER: dict[int, list[str]] = _TABLE["after"]
SHARES = {POLITE: 0.5, MILD: 0.3, STRONG: 0.2}  # shares of the levels of rudeness
MEAN_UPVOTES = {POLITE: 4, MILD: 6, STRONG: -3}  # expected upvotes by rudeness
UPVOTE_RANGE = 3  # upvotes are uniform on the whole numbers up to this far from their mean

_SPLIT_OF = {8: "val", 9: "test"}  # of ten comments; the others are for training


@dataclass(frozen=True)
class CommentReply:
    """A comment and a reply to it."""

    comment: str
    reply: str
    rudeness: int  # level of the reply's rudeness
    upvotes: float | None  # upvotes of the reply minus its downvotes; ``None`` if they are not known
    topic: str | None = None  # topic of the comment, if it is known


def generate_replies(split: str, seed: int = 0) -> Iterator[CommentReply]:
    """Generate replies without end; the same ones on every machine."""
    number = 0
    while True:
        found = _generate(random.Random(f"comment_reply/{seed}/{number}"))
        if _SPLIT_OF.get(derive_seed(0, found.comment) % 10, "train") == split:
            yield found
        number += 1


def _generate(rng: random.Random) -> CommentReply:
    topic = pick(rng, TOPICS)
    frame = Frame(rng, topic)
    comment = _say(rng, frame, COMMENTS, TELLER)
    rudeness, upvotes = draw_labels(rng)
    said = _say(rng, frame, REPLIES, LISTENER)
    # Rude on one side or on both: a polite opening would soften what comes after it.
    before, after = pick(rng, BEFORE[rudeness]), pick(rng, AFTER[rudeness])
    if rudeness != POLITE:
        before, after = pick(rng, ((before, ""), ("", after), (before, after)))
    reply = " ".join(part for part in (before, said, after) if part)
    return CommentReply(comment, reply, rudeness, upvotes, topic.name)


def draw_labels(rng: random.Random) -> tuple[int, int]:
    point = rng.random()
    rudeness = POLITE if point < SHARES[POLITE] else MILD if point < SHARES[POLITE] + SHARES[MILD] else STRONG
    return rudeness, MEAN_UPVOTES[rudeness] + int(rng.random() * (2 * UPVOTE_RANGE + 1)) - UPVOTE_RANGE


def _say(rng: random.Random, frame: Frame, phrases: Phrases, role: str) -> str:
    text, _ = frame.say(pick(rng, [phrase for phrase in phrases if frame.can_say(phrase, role)]), role)
    return text


_logger = logging.getLogger(__name__)

REMOVED = ("[deleted]", "[removed]")  # reddit's texts in place of comments that no longer exist


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
    index_file: Mapping[str, str] | None = None,
) -> Iterator[CommentReply]:
    """Read the replies of one split.

    Rows whose comment or reply was removed (`REMOVED`) are left out; their number is logged as a warning.
    """
    n_removed = 0
    readers = file_readers(path)
    for row in split_reader(split, readers, str(path), held_out_share, split_seed, index_file=index_file)():
        comment, reply = (_text(row, column, dialogue_format) for column in (parent_column, reply_column))
        if comment in REMOVED or reply in REMOVED:
            n_removed += 1
            continue
        given = None if rudeness_column is None else int(_number(row, rudeness_column, (POLITE, MILD, STRONG)))
        rudeness = rudeness_of(reply) if given is None else given
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


def _number(row: Row, column: str, allowed: Sequence[int] = ()) -> float:
    try:
        number = float(row.text(column))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (allowed and number not in allowed):
        wanted = f"one of {', '.join(map(str, allowed))}" if allowed else "a number"
        raise row.error(f"column {column!r} must contain {wanted}, not {row[column]!r}")
    return number


SIZES = {"n_train": 5000, "n_val": 500, "n_test": 500}  # number of generated replies by split
_OF_UPVOTES = ("upvotes", "upvote_count")


class CommentReplies(TextGenPool):
    """Comments with replies of different rudeness and upvotes: generated ones, or those of a file.

    Args:
        reward: The logged reward of a reply (Snell et al. 2022, arXiv 2206.11871). ``rudeness``: ``-scale`` times its
            rudeness (0, 1 or 2). ``noised``: the same, with 1 replaced by 0 or 2, at random. ``upvotes``: 1 if it has
            more upvotes than downvotes, otherwise -1. ``upvote_count``: the difference of both.
        scale: Scale of the rudeness in the reward.
        path: Instead of generated replies: CSV or JSON lines files. A file per split (``{train: FILE, val: FILE, test:
            FILE}``), a folder with ``train.csv`` and so on, or one file.
        parent_column: With ``path``: column with the comment.
        reply_column: With ``path``: column with the reply.
        score_column: With ``path``: column with the reply's upvotes minus its downvotes, if they are the reward.
        rudeness_column: With ``path``: column with the rudeness of the reply (0, 1 or 2). By default, a short list of
            rude words decides, which misses most of the rudeness of real texts.
        held_out_share: With ``path``: share of ``train`` for each of ``val`` and ``test`` without a file.
        split_seed: With ``path``: random seed of this sampling.
        index_file: With ``path``, instead of ``held_out_share``: by split, a JSON file with a list of row numbers.
        include_parent: Whether prompts contain the comment; otherwise, they are empty.
        n_train: Number of generated replies in ``train``; by default 5000. A larger number keeps the first ones.
        n_val: Number of generated replies in ``val``; by default 500.
        n_test: Number of generated replies in ``test``; by default 500.
        seed: Random seed of the replies and of ``noised``.
    """

    has_rewards = True

    @classmethod
    def prepare(
        cls,
        split: str,
        reward: RewardName = "rudeness",
        scale: float = 5.0,
        path: SplitPath | None = None,
        parent_column: str = "parent",
        reply_column: str = "reply",
        score_column: str = "score",
        rudeness_column: str | None = None,
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        index_file: IndexFiles | None = None,
        include_parent: bool = True,
        n_train: Count | None = None,
        n_val: Count | None = None,
        n_test: Count | None = None,
        seed: int = 0,
        max_size: Count | None = None,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> CommentReplies:
        """Load one split. No generated comment is in two splits.

        There is one sample per reply. Its prompt is the comment, if included, its reference the reply. Its
        meta data have ``history``, ``rudeness``, ``reward`` and, if they are known, ``upvotes`` and ``topic``.
        """
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        given = [name for name, size in sizes.items() if size is not None]
        if path is not None and given:
            problem = f"{given[0]} is the number of generated replies, and path reads replies from files"
            raise DataError(f"datapool 'comment_reply': {problem}; use max_size to read fewer")
        if path is None and (held_out_share or index_file) is not None:
            raise DataError("datapool 'comment_reply': held_out_share and index_file divide files, which need path")
        if reward == "upvotes" and split == "train":
            _logger.info("reward: upvotes pays 1 or -1, the sign of a reply's upvotes; upvote_count pays their number")
        dialogue_format = DialogueFormat(format, None, render_chat)
        replies: Iterable[CommentReply]
        if path is None:
            n_replies = size_of(split, *(sizes[name] or size for name, size in SIZES.items()))
            replies = itertools.islice(generate_replies(split, seed), n_replies)
        else:
            score = score_column if reward in _OF_UPVOTES else None
            columns = parent_column, reply_column, score, rudeness_column
            replies = read_replies(split, path, dialogue_format, *columns, held_out_share, split_seed, index_file)
        samples = (
            Sample(f"{split}_{number}", dialogue_format.prompt(history), [each.reply], _meta_data(each, history, paid))
            for number, each in enumerate(replies)
            for history in [[each.comment] if include_parent else []]
            for paid in [_reward(each, reward, scale, f"comment_reply/noise/{seed}/{split}/{number}")]
        )
        kept = limit_samples(samples, max_size, "comment_reply", split, str(path or "generated replies"))
        return cls(kept, dialogue_format=dialogue_format)

    def conversations(self) -> Iterator[Dialogue]:
        """Yield each comment with its reply as a conversation, with the logged reward of the reply."""
        for sample in self._samples:
            meta_data, (reply,) = sample.meta_data or {}, sample.references
            given = [Turn(comment, PARTNER) for comment in meta_data["history"]]
            turns = (*given, Turn(reply, AGENT, reward=meta_data["reward"]))
            yield Dialogue(sample.id, turns, meta_data.get("topic"), meta_data, n_given=len(given))


def _reward(reply: CommentReply, reward: RewardName, scale: float, seed: str) -> float:
    if reward in _OF_UPVOTES:
        assert reply.upvotes is not None
        return float(reply.upvotes) if reward == "upvote_count" else math.copysign(1.0, reply.upvotes or -1)
    rudeness = noised(reply.rudeness, random.Random(seed)) if reward == "noised" else reply.rudeness
    return -scale * rudeness if rudeness else 0.0  # not -0.0


def _meta_data(reply: CommentReply, history: list[str], reward: float) -> dict[str, Any]:
    known: dict[str, Any] = {"history": history, "rudeness": reply.rudeness, "reward": reward}
    known |= {"upvotes": reply.upvotes, "topic": reply.topic}
    return {name: value for name, value in known.items() if value is not None}
