"""Generated comments and replies: their labels, and that they are the same everywhere."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.data.small_talk.words import TOPICS
from rl4dialog.tasks.comment_reply.grammar import (
    MEAN_UPVOTES,
    SHARES,
    UPVOTE_RANGE,
    CommentReply,
    draw_labels,
    generate_replies,
)
from rl4dialog.tasks.comment_reply.phrases import AFTER, BEFORE, COMMENTS, REPLIES
from rl4dialog.tasks.comment_reply.rudeness import POLITE, rudeness_of

SPLITS = ("train", "val", "test")


def first(split: str, n: int, seed: int = 0) -> list[CommentReply]:
    return list(itertools.islice(generate_replies(split, seed), n))


@pytest.fixture(scope="module")
def replies() -> list[CommentReply]:
    return first("train", 4000)


def test_words_of_a_reply_show_its_rudeness(replies: list[CommentReply]) -> None:
    assert all(rudeness_of(each.reply) == each.rudeness for each in replies)
    assert all(rudeness_of(each.comment) == POLITE for each in replies)


def test_every_rude_opening_and_end_has_its_level() -> None:
    for parts in (BEFORE, AFTER):
        assert all(rudeness_of(part) == level for level, texts in parts.items() for part in texts)


def test_labels_have_their_law() -> None:
    rng, n = random.Random(0), 20_000
    labels = [draw_labels(rng) for _ in range(n)]
    counts = Counter(rudeness for rudeness, _ in labels)
    for rudeness, share in SHARES.items():
        assert counts[rudeness] / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)
        upvotes = Counter(up for level, up in labels if level == rudeness)
        values = range(MEAN_UPVOTES[rudeness] - UPVOTE_RANGE, MEAN_UPVOTES[rudeness] + UPVOTE_RANGE + 1)
        assert sorted(upvotes) == list(values)
        p = 1 / len(values)
        error = 4 * (p * (1 - p) / counts[rudeness]) ** 0.5
        assert all(upvotes[value] / counts[rudeness] == pytest.approx(p, abs=error) for value in values)


def test_rudeness_does_not_depend_on_the_comment(replies: list[CommentReply]) -> None:
    for asks in (True, False):
        levels = [each.rudeness for each in replies if each.comment.endswith("?") == asks]
        assert len(levels) > 1000 and sum(levels) / len(levels) == pytest.approx(0.7, abs=0.1)


def test_texts_are_filled_and_various(replies: list[CommentReply]) -> None:
    texts = [text for each in replies for text in (each.comment, each.reply)]
    assert not any(mark in text for text in texts for mark in "{}+")
    assert all(text == " ".join(text.split()) and text[-1] in ".?!" for text in texts)
    assert len({(each.comment, each.reply) for each in replies}) > 3990
    assert {each.topic for each in replies} == {topic.name for topic in TOPICS}
    assert max(len(each.reply.split()) for each in replies) < 30


def test_every_phrase_is_used(replies: list[CommentReply]) -> None:
    for phrases, texts in ((COMMENTS, [r.comment for r in replies]), (REPLIES, [r.reply for r in replies])):
        for phrase in phrases:
            longest = max(phrase.text.replace("{", "}").split("}")[::2], key=len)
            assert any(longest in text for text in texts), phrase.text


def test_no_comment_is_in_two_splits() -> None:
    comments = [{each.comment for seed in (0, 1) for each in first(split, 1000, seed)} for split in SPLITS]
    assert all(not one & other for one, other in itertools.combinations(comments, 2))
    assert all(len(each) > 1500 for each in comments)


def test_same_seed_same_replies_and_other_seeds_differ() -> None:
    assert first("val", 20) == first("val", 20) == first("val", 40)[:20]
    assert first("val", 20) != first("val", 20, seed=1)


def test_other_processes_generate_the_same() -> None:
    assert_other_processes_make_the_same(functools.partial(first, "test", 50))
