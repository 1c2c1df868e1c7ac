"""Comments and replies: rudeness, grammar, files and the datapool."""

import itertools
import json
import logging
import random
import statistics
from collections import Counter

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.tasks import comment_reply


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", comment_reply.POLITE),
        ("i love soups too.", comment_reply.POLITE),
        ("Duh, i love soups.", comment_reply.MILD),
        ("i love soups.Whatever", comment_reply.MILD),
        ("so  what?", comment_reply.MILD),
        ("so\nwhat?", comment_reply.MILD),
        ("so, what do you cook?", comment_reply.POLITE),
        ("you clown.", comment_reply.STRONG),
        ("yawn. SHUT UP!", comment_reply.STRONG),
        ("you idiot, duh.", comment_reply.STRONG),
        ("clowns are foolish", comment_reply.POLITE),
        ("a dumbbell", comment_reply.POLITE),
    ],
)
def test_level_is_that_of_the_rudest_whole_word(text, level):
    assert comment_reply.rudeness_of(text) == level


SPLITS = ("train", "val", "test")


def first(split, n, seed=0):
    return list(itertools.islice(comment_reply.generate_replies(split, seed), n))


@pytest.fixture(scope="module")
def replies():
    return first("train", 4000)


def test_words_of_a_reply_show_its_rudeness(replies):
    assert all(comment_reply.rudeness_of(each.reply) == each.rudeness for each in replies)
    assert all(comment_reply.rudeness_of(each.comment) == comment_reply.POLITE for each in replies)


def test_labels_have_their_law():
    rng, n = random.Random(0), 20_000
    labels = [comment_reply.draw_labels(rng) for _ in range(n)]
    counts = Counter(rudeness for rudeness, _ in labels)
    for rudeness, share in comment_reply.SHARES.items():
        assert counts[rudeness] / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)
        upvotes = Counter(up for level, up in labels if level == rudeness)
        values = range(
            comment_reply.MEAN_UPVOTES[rudeness] - comment_reply.UPVOTE_RANGE,
            comment_reply.MEAN_UPVOTES[rudeness] + comment_reply.UPVOTE_RANGE + 1,
        )
        assert sorted(upvotes) == list(values)
        p = 1 / len(values)
        error = 4 * (p * (1 - p) / counts[rudeness]) ** 0.5
        assert all(upvotes[value] / counts[rudeness] == pytest.approx(p, abs=error) for value in values)


def test_no_comment_is_in_two_splits():
    comments = [{each.comment for seed in (0, 1) for each in first(split, 1000, seed)} for split in SPLITS]
    assert all(not one & other for one, other in itertools.combinations(comments, 2))
    assert all(len(each) > 1500 for each in comments)


EOU = DialogueFormat("eou", None)
CSV = 'parent,reply,score\nhello there,"hi, you",3\nhello again,duh,-2.5\n'


def read(path, split="train", **args):
    return list(comment_reply.read_replies(split, path, EOU, **args))


def written(folder, text, name="replies.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_file_is_read_and_judged_by_its_words(tmp_path):
    assert read(written(tmp_path, CSV), score_column="score") == [
        comment_reply.CommentReply("hello there", "hi, you", 0, 3.0),
        comment_reply.CommentReply("hello again", "duh", 1, -2.5),
    ]
    assert [each.upvotes for each in read(written(tmp_path, CSV))] == [None, None]


def test_json_lines_may_have_other_names_and_labels(tmp_path):
    rows = [{"post": " a ", "answer": "b", "ups": 7, "rude": 2}, {"post": "c", "answer": "duh", "ups": "8", "rude": 0}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)), "replies.jsonl")
    columns = {"parent_column": "post", "reply_column": "answer", "score_column": "ups", "rudeness_column": "rude"}
    assert read(path, **columns) == [
        comment_reply.CommentReply("a", "b", 2, 7.0),
        comment_reply.CommentReply("c", "duh", 0, 8.0),
    ]


def test_removed_texts_are_left_out_and_said(tmp_path, caplog):
    path = written(tmp_path, "parent,reply\n[deleted],hi\nhello,[removed]\nhello,hi\n")
    with caplog.at_level(logging.WARNING):
        assert [each.reply for each in read(path)] == ["hi"]
    assert "replies.csv, train: 2 replies were left out, because a text was removed" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parent,score\nhello,3\n", r"replies\.csv:2: no column 'reply' \(columns: parent, score\)"),
        ("parent,reply,score\nhello,hi,3\n\nhello,hi,many\n", r":4: column 'score' must contain a number, not 'many'"),
        ("parent,reply,score\nhello,hi,nan\n", r":2: column 'score' must contain a number, not 'nan'"),
        ("parent,reply,score\nhello, ,3\n", r":2: column 'reply' is empty; it must contain a text"),
        ("parent,reply,score\nhello <EOU>,hi,3\n", r":2: column 'parent': a text cannot contain <EOU>, which ends a"),
        ("parent,reply,score\nhello,hi\n", r":2: 2 fields, but the first line has 3 columns"),
    ],
)
def test_malformed_row_is_an_error_that_names_file_and_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(written(tmp_path, text), score_column="score")


def samples(split="train", **args):
    return [sample for sample, _ in comment_reply.CommentReplies.prepare(split, **args)]


def rewards(n=4000, **args):
    return [(each.meta_data["rudeness"], each.meta_data["reward"]) for each in samples(n_train=n, **args)]


def test_conversations_have_the_logged_reward():
    pool = comment_reply.CommentReplies.prepare("test", reward="upvote_count")
    dialogues = list(pool.conversations())
    assert len(dialogues) == 500 and len({turn.reward for each in dialogues for turn in each.turns}) > 8
    for dialogue, (sample, _) in zip(dialogues, pool, strict=True):
        comment, reply = dialogue.turns
        assert (comment.text, comment.speaker, comment.reward) == (sample.meta_data["history"][0], PARTNER, 0)
        assert (reply.text, reply.speaker) == (sample.references[0], AGENT)
        assert reply.reward == sample.meta_data["upvotes"] == sample.meta_data["reward"]
        assert (dialogue.id, dialogue.topic) == (sample.id, sample.meta_data["topic"])
        assert dialogue.n_given == 1 and dialogue.terminated and dialogue.meta_data == sample.meta_data


def test_rudeness_costs_its_scale():
    assert set(rewards(300)) == {(0, 0.0), (1, -5.0), (2, -10.0)}
    assert set(rewards(300, scale=2)) == {(0, 0.0), (1, -2.0), (2, -4.0)}
    assert not any(str(reward) == "-0.0" for _, reward in rewards(300))


def test_noise_replaces_only_mild_rudeness_and_keeps_the_mean():
    clean, noisy = rewards(), rewards(reward="noised")
    assert [level for level, _ in clean] == [level for level, _ in noisy], "the replies and labels are the same"
    counts = Counter(noisy)
    assert counts.keys() == {(0, 0.0), (1, 0.0), (1, -10.0), (2, -10.0)}
    mild = [reward for level, reward in noisy if level == 1]
    assert abs(statistics.mean(mild) + 5) < 4 * 5 / len(mild) ** 0.5
    assert noisy == rewards(reward="noised") != rewards(reward="noised", seed=1)


def test_file_gives_samples_and_rewards(tmp_path):
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


def test_replies_without_comments_and_rows_of_index_files(tmp_path):
    path = written(tmp_path, "parent,reply,score\na,one,1\nb,two,2\nc,three,-3\n")
    index = {}
    for split, numbers in (("train", [2, 0]), ("val", [1]), ("test", [1])):
        index[split] = str(tmp_path / f"{split}.idx")
        (tmp_path / f"{split}.idx").write_text(json.dumps(numbers))
    args = {"path": path, "reward": "upvote_count", "index_file": index, "include_parent": False}
    pool = comment_reply.CommentReplies.prepare("train", **args)
    assert [sample.references for sample, _ in pool] == [["one"], ["three"]]
    assert {str(sample.prompt_or_input_text) for sample, _ in pool} == {" <EOU>"}
    for conversation, reward in zip(pool.conversations(), (1.0, -3.0), strict=True):
        assert conversation.n_given == 0 and [turn.speaker for turn in conversation.turns] == [AGENT]
        assert conversation.turns[0].reward == reward
    assert [sample.references for sample, _ in comment_reply.CommentReplies.prepare("test", **args)] == [["two"]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"n_val": 5, "path": "x.csv"}, "n_val is the number of generated replies, and path reads"),
        ({"held_out_share": 0.1}, "held_out_share and index_file divide files, which need path"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args, message):
    with pytest.raises(DataError, match=message):
        comment_reply.CommentReplies.prepare("train", **args)


@pytest.mark.parametrize("value", [3, -1, 0.5, "rude"])
def test_unknown_level_of_rudeness_is_an_error(tmp_path, value):
    path = written(tmp_path, json.dumps({"parent": "a", "reply": "b", "rude": value}), "replies.jsonl")
    with pytest.raises(DataError, match=r"replies\.jsonl:1: column 'rude' must contain"):
        read(path, rudeness_column="rude")


@pytest.mark.parametrize(
    ("reward", "expected"), [("rudeness", -3.5), ("noised", -3.5), ("upvote_count", 3.2), ("upvotes", 0.6)]
)
def test_mean_reward_of_the_data_is_that_of_the_docs(reward, expected):
    found = [each for _, each in rewards(reward=reward)]
    standard_error = statistics.stdev(found) / len(found) ** 0.5
    assert abs(statistics.mean(found) - expected) < 4 * standard_error < 0.4
