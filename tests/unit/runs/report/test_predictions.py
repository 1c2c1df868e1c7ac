"""Files of predictions, and their pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from run_files import game, prediction, write_json

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT
from rl4dialog.runs.report.predictions import Predictions, pair, read_predictions


def read(tmp_path: Path, rows: Any) -> Predictions:
    write_json(tmp_path / "file.json", rows)
    found = read_predictions(tmp_path / "file.json")
    assert found is not None
    return found


def test_texts_references_and_scores_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, [prediction(0, "a b", m=1, n="n/a"), prediction(1, "c", m=None, n="n/a")])
    assert found.replies == ["a b", "c"] and found.references[1] == ["fine 1", "good"]
    assert list(found.scores) == ["m"] and found.scores["m"][0] == 1 and math.isnan(found.scores["m"][1])
    assert found.reply_lengths().tolist() == [2, 1]


def test_utterances_of_a_chat_template_come_without_its_markup(tmp_path: Path) -> None:
    chat = {**prediction(0, "a"), "prompt_text": "<|im_start|>user\nHi!<|im_end|>\n"}
    marked = {**prediction(1, "b"), "prompt_text": "Hi! <EOU> Hello.<EOU>"}
    found = read(tmp_path, [{**chat, "history": ["Hi!"]}, chat, marked])
    assert found.utterances == [["Hi!"], ["<|im_start|>user\nHi!<|im_end|>"], ["Hi!", "Hello."]]


def test_empty_references_are_none(tmp_path: Path) -> None:
    assert read(tmp_path, [{**prediction(0, "a"), "ref_text": "<START-1><END-1>"}]).references == [[]]


def test_episodes_have_scores_and_no_texts(tmp_path: Path) -> None:
    found = read(tmp_path, [{"split_name": "val", "sample_id": i, "episode/return": 1.5 * i} for i in range(2)])
    assert not found.has_texts and list(found.scores) == ["episode/return"] and found.sample_ids == ["0", "1"]


def test_conversations_are_read_and_paired_with_their_samples(tmp_path: Path) -> None:
    before = read(
        tmp_path, [game(0, ("a b", "yes")), game(1, ("c", "no"), ("d e f", "yes"), won=True), prediction(2, "x")]
    )
    assert before.has_conversations and list(before.scores) == []
    assert before.reply_lengths().tolist() == [2, 1, 3, 1]
    after = read(tmp_path, [prediction(2, "y"), game(1, ("g", "yes"))])
    old, new = pair(before, after)
    assert [said and said.texts(AGENT) for said in old.conversations] == [["c", "d e f"], None]
    assert [said and said.texts(AGENT) for said in new.conversations] == [["g"], None]
    assert not read(tmp_path, [prediction(2, "y")]).has_conversations


def test_conversation_that_is_none_is_an_error_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"file\.json has a conversation that cannot be read: each turn needs a speaker"
    ):
        read(tmp_path, [{**game(0, ("a", "b")), "turns": [{"speaker": "me", "text": "a"}]}])


def test_other_forms_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"file\.json must be a list of objects, each with the texts prompt_text"):
        read(tmp_path, [{"prompt_text": "a"}])
    with pytest.raises(DataError, match="must be a list"):
        read(tmp_path, {})


def test_pairs_are_of_the_same_prompts_also_where_ids_repeat(tmp_path: Path) -> None:
    before = read(tmp_path, [prediction(i, f"old {n}") for n, i in enumerate((5, 7, 7, 9))])
    after = read(tmp_path, [prediction(i, f"new {n}") for n, i in enumerate((7, 5, 7))])
    old, new = pair(before, after)
    assert old.replies == ["old 0", "old 1", "old 2"]
    assert new.replies == ["new 1", "new 0", "new 2"]
