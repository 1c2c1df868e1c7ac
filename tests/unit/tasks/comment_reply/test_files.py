"""Comments and replies in files: columns, and errors that name file and line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.tasks.comment_reply.files import read_replies
from rl4dialog.tasks.comment_reply.grammar import CommentReply

EOU = DialogueFormat("eou", None)
CSV = 'parent,reply,score\nhello there,"hi, you",3\nhello again,duh,-2.5\n'


def read(path: Path, split: str = "train", **args: Any) -> list[CommentReply]:
    return list(read_replies(split, path, EOU, **args))


def written(folder: Path, text: str, name: str = "replies.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_file_is_read_and_judged_by_its_words(tmp_path: Path) -> None:
    assert read(written(tmp_path, CSV), score_column="score") == [
        CommentReply("hello there", "hi, you", 0, 3.0),
        CommentReply("hello again", "duh", 1, -2.5),
    ]
    assert [each.upvotes for each in read(written(tmp_path, CSV))] == [None, None]


def test_json_lines_may_have_other_names_and_labels(tmp_path: Path) -> None:
    rows = [{"post": " a ", "answer": "b", "ups": 7, "rude": 2}, {"post": "c", "answer": "duh", "ups": "8", "rude": 0}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)), "replies.jsonl")
    columns = {"parent_column": "post", "reply_column": "answer", "score_column": "ups", "rudeness_column": "rude"}
    assert read(path, **columns) == [CommentReply("a", "b", 2, 7.0), CommentReply("c", "duh", 0, 8.0)]


def test_splits_of_one_file_are_drawn_and_disjoint(tmp_path: Path) -> None:
    path = written(tmp_path, "parent,reply\n" + "".join(f"p{i},r{i}\n" for i in range(40)))
    drawn = [[each.reply for each in read(path, split, held_out_share=0.1)] for split in ("train", "val", "test")]
    assert [len(each) for each in drawn] == [32, 4, 4]
    assert len({reply for each in drawn for reply in each}) == 40
    with pytest.raises(DataError, match="has no split 'val'"):
        read(path, "val")


def test_removed_texts_are_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_malformed_row_is_an_error_that_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(written(tmp_path, text), score_column="score")


@pytest.mark.parametrize("value", [3, -1, 0.5, "rude"])
def test_unknown_level_of_rudeness_is_an_error(tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, json.dumps({"parent": "a", "reply": "b", "rude": value}), "replies.jsonl")
    with pytest.raises(DataError, match=r"replies\.jsonl:1: column 'rude' must contain"):
        read(path, rudeness_column="rude")


def test_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.csv does not exist"):
        read(tmp_path / "missing.csv")
