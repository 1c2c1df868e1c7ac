"""The datapool comment_reply: samples, conversations and logged rewards."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.tasks.comment_reply.datapool import CommentReplies


def samples(split: str = "train", **args: Any) -> list[Sample]:
    return [sample for sample, _ in CommentReplies.prepare(split, **args)]


def rewards(n: int = 4000, **args: Any) -> list[tuple[int, float]]:
    """Rudeness and logged reward of each reply."""
    return [(each.meta_data["rudeness"], each.meta_data["reward"]) for each in samples(n_train=n, **args)]


def test_sizes_are_those_promised() -> None:
    assert [len(CommentReplies.prepare(split)) for split in ("train", "val", "test")] == [5000, 500, 500]


def test_samples_are_comments_with_one_reply() -> None:
    data = samples("val")
    assert len({sample.id for sample in data}) == 500
    for sample in data:
        assert sample.meta_data is not None and len(sample.references) == 1
        assert sample.prompt_or_input_text == f"{sample.meta_data['history'][0]} <EOU>"
        assert sample.meta_data.keys() == {"history", "rudeness", "reward", "upvotes", "topic"}
    assert samples("val", n_val=10) == data[:10] == samples("val", max_size=10)


def test_conversations_have_the_logged_reward() -> None:
    pool = CommentReplies.prepare("test", reward="upvote_count")
    dialogues = list(pool.conversations())
    assert len(dialogues) == 500 and len({turn.reward for each in dialogues for turn in each.turns}) > 8
    for dialogue, (sample, _) in zip(dialogues, pool, strict=True):
        comment, reply = dialogue.turns
        assert (comment.text, comment.speaker, comment.reward) == (sample.meta_data["history"][0], PARTNER, 0)
        assert (reply.text, reply.speaker) == (sample.references[0], AGENT)
        assert reply.reward == sample.meta_data["upvotes"] == sample.meta_data["reward"]
        assert (dialogue.id, dialogue.topic) == (sample.id, sample.meta_data["topic"])
        assert dialogue.n_given == 1 and dialogue.terminated and dialogue.meta_data == sample.meta_data


def test_rudeness_costs_its_scale() -> None:
    assert set(rewards(300)) == {(0, 0.0), (1, -5.0), (2, -10.0)}
    assert set(rewards(300, scale=2)) == {(0, 0.0), (1, -2.0), (2, -4.0)}
    assert not any(str(reward) == "-0.0" for _, reward in rewards(300))


def test_noise_replaces_only_mild_rudeness_and_keeps_the_mean() -> None:
    clean, noisy = rewards(), rewards(reward="noised")
    assert [level for level, _ in clean] == [level for level, _ in noisy], "the replies and labels are the same"
    counts = Counter(noisy)
    assert counts.keys() == {(0, 0.0), (1, 0.0), (1, -10.0), (2, -10.0)}
    mild = [reward for level, reward in noisy if level == 1]
    assert abs(statistics.mean(mild) + 5) < 4 * 5 / len(mild) ** 0.5
    assert noisy == rewards(reward="noised") != rewards(reward="noised", seed=1)


@pytest.mark.parametrize(
    ("reward", "expected"), [("rudeness", -3.5), ("noised", -3.5), ("upvote_count", 3.2), ("upvotes", 0.6)]
)
def test_mean_reward_of_the_data_is_that_of_the_docs(reward: str, expected: float) -> None:
    found = [each for _, each in rewards(reward=reward)]
    standard_error = statistics.stdev(found) / len(found) ** 0.5
    assert abs(statistics.mean(found) - expected) < 4 * standard_error < 0.4


def test_file_gives_samples_and_rewards(tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_text("parent,reply,score\nhello,hi,57\nhello,duh,-3\nhello,oh,0\nhello,fine,1\n")
    by_rudeness = samples(path=path)
    assert by_rudeness[1] == Sample(
        "train_1", "hello <EOU>", ["duh"], {"history": ["hello"], "rudeness": 1, "reward": -5.0}
    )
    for reward, expected in (("upvote_count", [57, -3, 0, 1]), ("upvotes", [1, -1, -1, 1])):
        assert [each.meta_data["reward"] for each in samples(path=path, reward=reward)] == expected
    path.write_text("parent,reply\nhello,hi\n")
    assert len(samples(path=path)) == 1, "upvotes are needed only for rewards of upvotes"
    for reward in ("upvotes", "upvote_count"):
        with pytest.raises(DataError, match="no column 'score'"):
            samples(path=path, reward=reward)
    path.write_text("parent,reply\n")
    with pytest.raises(DataError, match="datapool 'comment_reply' has no samples"):
        samples(path=path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"reward": "rudenes"}, "unknown reward 'rudenes'; did you mean 'rudeness'"),
        ({"scale": "5"}, "scale must be a number, not '5'"),
        ({"n_train": 0}, "n_train must be a whole number of at least 1, not 0"),
        ({"n_val": 5, "path": "x.csv"}, "n_val is the number of generated replies, and path reads"),
        ({"held_out_share": 0.1}, "held_out_share divides files, which need path"),
        ({"format": "chat_template"}, "format 'chat_template' needs a tokenizer"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CommentReplies.prepare("train", **args)


def test_unknown_split_is_an_error() -> None:
    with pytest.raises(DataError, match="unknown split 'dev'"):
        CommentReplies.prepare("dev")


def test_registry_checks_arguments_of_a_config() -> None:
    DataPoolRegistry.check("comment_reply", {"reward": "noised", "scale": 2.0, "path": {"train": "a.csv"}})
    with pytest.raises(ConfigError, match="reward"):
        DataPoolRegistry.check("comment_reply", {"reward": "toxicity"})
