"""Generated comments with one reply each, whose rudeness and upvotes are drawn at random.

The rudeness of a reply does not depend on the comment. Its upvotes depend only on its rudeness: mildly rude replies get
the most and strongly rude ones the fewest, so that the two rewards disagree about the best reply.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.small_talk.frame import Frame, pick
from rl4dialog.data.small_talk.phrases import LISTENER, TELLER, Phrases
from rl4dialog.data.small_talk.words import TOPICS
from rl4dialog.tasks.comment_reply.phrases import AFTER, BEFORE, COMMENTS, REPLIES
from rl4dialog.tasks.comment_reply.rudeness import MILD, POLITE, STRONG

SHARES = {POLITE: 0.5, MILD: 0.3, STRONG: 0.2}
"""Shares of the levels of rudeness."""
MEAN_UPVOTES = {POLITE: 4, MILD: 6, STRONG: -3}
"""Expected upvotes by rudeness."""
UPVOTE_RANGE = 3
"""Upvotes are uniform on the whole numbers up to this far from their mean."""

_SPLIT_OF = {8: "val", 9: "test"}  # of ten comments; the others are for training


@dataclass(frozen=True)
class CommentReply:
    """A comment and a reply to it.

    Attributes:
        comment: The comment.
        reply: The reply.
        rudeness: Level of the reply's rudeness.
        upvotes: Upvotes of the reply minus its downvotes; ``None`` if they are not known.
        topic: Topic of the comment, if it is known.
    """

    comment: str
    reply: str
    rudeness: int
    upvotes: float | None
    topic: str | None = None


def generate_replies(split: str, seed: int = 0) -> Iterator[CommentReply]:
    """Generate replies without end; the same ones on every machine.

    Args:
        split: ``train``, ``val`` or ``test``. No comment is in two splits, whatever the seeds.
        seed: Random seed.
    """
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
    """Draw the rudeness of a reply and its upvotes."""
    point, rudeness = rng.random(), STRONG
    if point < SHARES[POLITE]:
        rudeness = POLITE
    elif point < SHARES[POLITE] + SHARES[MILD]:
        rudeness = MILD
    return rudeness, MEAN_UPVOTES[rudeness] + int(rng.random() * (2 * UPVOTE_RANGE + 1)) - UPVOTE_RANGE


def _say(rng: random.Random, frame: Frame, phrases: Phrases, role: str) -> str:
    text, _ = frame.say(pick(rng, [phrase for phrase in phrases if frame.can_say(phrase, role)]), role)
    return text
