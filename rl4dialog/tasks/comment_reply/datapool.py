"""The datapool: comments with one reply each, and its logged reward."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn, is_number
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_counts, check_split, limit_samples
from rl4dialog.data.splits import HeldOutShare, SplitPath
from rl4dialog.tasks.comment_reply.files import read_replies
from rl4dialog.tasks.comment_reply.grammar import CommentReply, generate_replies
from rl4dialog.tasks.comment_reply.rudeness import RewardName, noised

SIZES = {"train": 5000, "val": 500, "test": 500}
"""Number of generated replies by split."""
_OF_UPVOTES = ("upvotes", "upvote_count")
_logger = logging.getLogger(__name__)


class CommentReplies(TextGenPool):
    """Comments with replies of different rudeness and upvotes: generated ones, or those of a file."""

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
        n_train: Count | None = None,
        n_val: Count | None = None,
        n_test: Count | None = None,
        seed: int = 0,
        max_size: Count | None = None,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> CommentReplies:
        """Load one split.

        Args:
            split: ``train``, ``val`` or ``test``. No generated comment is in two splits.
            reward: The logged reward of a reply. ``rudeness``: ``-scale`` times its rudeness (0, 1 or 2). ``noised``:
                the same, but with rudeness 1 replaced by 0 or 2, at random. ``upvotes``: 1 if it has more upvotes than
                downvotes, otherwise -1 (Snell et al. 2022, arXiv 2206.11871). ``upvote_count``: the difference of both.
            scale: Scale of the rudeness in the reward.
            path: Instead of generated replies: CSV or JSON lines files. A file per split (``{train: FILE, val: FILE,
                test: FILE}``), a folder with ``train.csv`` and so on, or one file.
            parent_column: With ``path``: column with the comment.
            reply_column: With ``path``: column with the reply.
            score_column: With ``path``: column with the reply's upvotes minus its downvotes, if they are the reward.
            rudeness_column: With ``path``: column with the rudeness of the reply (0, 1 or 2). By default, it is judged
                by a short list of rude words, which misses most of the rudeness of real texts.
            held_out_share: With ``path``: share of ``train`` for each of ``val`` and ``test`` without a file.
            split_seed: With ``path``: random seed of this sampling.
            n_train: Number of generated replies in ``train``; by default 5000. A larger number keeps the first ones;
                likewise below.
            n_val: Number of generated replies in ``val``; by default 500.
            n_test: Number of generated replies in ``test``; by default 500.
            seed: Random seed of the replies and of ``noised``.
            max_size: Keep only the first samples.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per reply. The prompt is the comment, and the reference is the reply. The meta data
            have ``history``, ``rudeness``, ``reward`` and, if they are known, ``upvotes`` and ``topic``.

        Raises:
            DataError: If an argument is invalid, or a file is missing, malformed or empty.
        """
        check_split(split)
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        _check_arguments(reward, scale, sizes, path, held_out_share)
        if reward == "upvotes" and split == "train":
            _logger.info(
                "reward: upvotes pays 1 or -1, by the sign of a reply's upvotes; upvote_count pays their number"
            )
        dialogue_format = DialogueFormat(format, None, render_chat)
        replies: Iterable[CommentReply]
        if path is None:
            replies = itertools.islice(generate_replies(split, seed), sizes[f"n_{split}"] or SIZES[split])
        else:
            score = score_column if reward in _OF_UPVOTES else None
            columns = parent_column, reply_column, score, rudeness_column
            replies = read_replies(split, path, dialogue_format, *columns, held_out_share, split_seed)
        samples = (
            Sample(
                f"{split}_{number}",
                dialogue_format.prompt([each.comment]),
                [each.reply],
                _meta_data(each, _reward(each, reward, scale, f"comment_reply/noise/{seed}/{split}/{number}")),
            )
            for number, each in enumerate(replies)
        )
        pool = cls(limit_samples(samples, max_size, "comment_reply", split, str(path or "generated replies")))
        pool.use_format(dialogue_format)
        return pool

    def conversations(self) -> Iterator[Dialogue]:
        """Yield each comment with its reply as a conversation, with the logged reward of the reply."""
        for sample in self._samples:
            meta_data, (reply,) = sample.meta_data or {}, sample.references
            turns = (Turn(meta_data["history"][0], PARTNER), Turn(reply, AGENT, reward=meta_data["reward"]))
            yield Dialogue(sample.id, turns, meta_data.get("topic"), meta_data, n_given=1)


def _reward(reply: CommentReply, reward: RewardName, scale: float, seed: str) -> float:
    if reward in _OF_UPVOTES:
        assert reply.upvotes is not None
        if reward == "upvote_count":
            return float(reply.upvotes)
        return 1.0 if reply.upvotes > 0 else -1.0
    rudeness = noised(reply.rudeness, random.Random(seed)) if reward == "noised" else reply.rudeness
    return -scale * rudeness if rudeness else 0.0  # not -0.0


def _meta_data(reply: CommentReply, reward: float) -> dict[str, Any]:
    known = {"upvotes": reply.upvotes, "topic": reply.topic}
    return {
        "history": [reply.comment],
        "rudeness": reply.rudeness,
        "reward": reward,
        **{name: value for name, value in known.items() if value is not None},
    }


def _check_arguments(
    reward: str, scale: float, sizes: dict[str, int | None], path: SplitPath | None, held_out_share: float | None
) -> None:
    names = get_args(RewardName)
    if reward not in names:
        raise DataError(
            f"datapool 'comment_reply': unknown reward {reward!r}{nearest_hint(reward, names)} ({', '.join(names)})"
        )
    if not is_number(scale):
        raise DataError(f"datapool 'comment_reply': scale must be a number, not {scale!r}")
    given = {name: size for name, size in sizes.items() if size is not None}
    check_counts("comment_reply", given)
    if path is not None and given:
        raise DataError(
            f"datapool 'comment_reply': {next(iter(given))} is the number of generated replies, and path reads replies "
            f"from files; use max_size to read fewer"
        )
    if path is None and held_out_share is not None:
        raise DataError("datapool 'comment_reply': held_out_share divides files, which need path")
