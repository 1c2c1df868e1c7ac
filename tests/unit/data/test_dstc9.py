from __future__ import annotations

import json
from pathlib import Path

import pytest
from rated import DSTC9_ROW, write_dstc9

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.data.dstc9 import read_dstc9


def test_conversation_of_several_raters_is_one_with_their_means(tmp_path: Path) -> None:
    first, second, *_ = read_dstc9(write_dstc9(tmp_path))
    assert first.ratings == {"consistent": 1.0, "overall": 4.5, "topic_depth": 2.0}
    assert first.dialogue.meta_data == {"n_raters": 2}
    assert second.ratings == {"consistent": 1.0, "overall": 1.0}  # N/A is a gap
    assert (first.system, first.conversation, second.conversation) == ("chatbot1", "chatbot1_0", "chatbot1_1")


def test_utterance_on_the_line_after_its_speaker_is_read(tmp_path: Path) -> None:
    turns = read_dstc9(write_dstc9(tmp_path))[0].dialogue.turns
    assert [(turn.text, turn.speaker) for turn in turns] == [
        *(("hello", PARTNER), ("hi there", AGENT), ("bye", PARTNER), ("bye", AGENT))
    ]


def test_chatbots_are_in_numeric_order(tmp_path: Path) -> None:
    systems = [rated.system for rated in read_dstc9(write_dstc9(tmp_path, n_bots=10))]
    assert list(dict.fromkeys(systems)) == [f"chatbot{n}" for n in range(1, 11)]


def test_folder_without_chatbots_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains no files of DSTC9's chatbots \(chatbot1.json"):
        read_dstc9(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"likeable": "good"}, r"row 1: the rating 'likeable' must be a number or 'N/A', not 'good'"),
        ({"context": "hello"}, r"row 1: column 'context' must be a conversation"),
    ],
)
def test_malformed_row_is_named(tmp_path: Path, change: dict[str, str], message: str) -> None:
    (tmp_path / "chatbot1.json").write_text(json.dumps([DSTC9_ROW, {**DSTC9_ROW, **change}]))
    with pytest.raises(DataError, match=message):
        read_dstc9(tmp_path)
