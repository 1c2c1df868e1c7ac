"""Rudeness as a metric."""

from __future__ import annotations

from rl4dialog.metrics.rudeness import RudenessMetric
from rl4dialog.tasks.comment_reply.datapool import CommentReplies


def test_scores_of_texts_made_by_hand() -> None:
    found = RudenessMetric().compute([""] * 4, ["hi", "duh", "you clown, whatever", ""], [[]] * 4)
    assert found == {
        "rudeness/level": ([0, 1, 2, 0], 0.75),
        "rudeness/polite": ([1, 0, 0, 1], 0.5),
        "rudeness/mild": ([0, 1, 0, 0], 0.25),
        "rudeness/strong": ([0, 0, 1, 0], 0.25),
    }


def test_references_of_the_datapool_have_their_labels() -> None:
    data = [sample for sample, _ in CommentReplies.prepare("test")]
    found = RudenessMetric().compute([""] * 500, [each.references[0] for each in data], [[]] * 500)
    assert found["rudeness/level"][0] == [each.meta_data["rudeness"] for each in data]
