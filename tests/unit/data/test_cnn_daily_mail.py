"""CNN/DailyMail from stories, from tokenized files, from tables and from a stand-in for the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.cnn_daily_mail import HUB_ID, HUB_NAME, CNNDailyMail, parse_story
from rl4dialog.experiments.stand_in_data import STORY, story_name

Write = Callable[[dict[str, Any]], Path]


def test_stories_are_read_in_the_order_of_the_url_list(write: Write) -> None:
    folder = write(
        {
            story_name("http://a"): STORY,
            story_name("http://b"): STORY.replace("fox", "cat"),
            story_name("http://c"): STORY,
            "url_lists/all_train.txt": "http://b\nhttp://gone\nhttp://a\n",
            "url_lists/all_val.txt": "http://c\n",
        }
    )
    samples = [sample for sample, _ in CNNDailyMail.prepare("train", path=folder, prompt_prefix="Summarize: ")]
    assert [s.prompt_or_input_text for s in samples] == [
        "Summarize: A cat ran. Photo of the cat .",
        "Summarize: A fox ran. Photo of the fox .",
    ]
    assert samples[0].references == ["Fox runs .\nIt is fast!"]
    assert len(CNNDailyMail.prepare("val", path=folder)) == 1


def test_highlights_are_no_part_of_the_article() -> None:
    assert parse_story(STORY.splitlines()) == ("A fox ran. Photo of the fox .", "Fox runs .\nIt is fast!")
    assert parse_story([]) == ("", "")


def test_tokenized_files_are_joined_again(write: Write) -> None:
    row = {"src": [["a", "fox", "ran", "."], ["fast", "."]], "tgt": [["fox", "runs"], ["fast"]]}
    folder = write({"cnndm.train.0.json": json.dumps([row]), "cnndm.train.1.json": json.dumps([row])})
    sample, _ = CNNDailyMail.prepare("train", path=folder)[0]
    assert (sample.prompt_or_input_text, sample.references) == ("a fox ran . fast .", ["fox runs\nfast"])
    assert len(CNNDailyMail.prepare("train", path=folder)) == 2


def test_article_is_cut_after_so_many_words(write: Write) -> None:
    folder = write({"test.jsonl": json.dumps({"article": "It's late. Go home, all.", "highlights": "Late."})})
    args = {"split": "test", "path": str(folder), "truncate_article": 7, "prompt_suffix": " TL;DR:"}
    sample = DataPoolRegistry.get("cnn_daily_mail", args)[0][0]
    assert sample.prompt_or_input_text == "It 's late . Go home , TL;DR:"


def test_hub_rows_become_samples(fake_hub: Any) -> None:
    rows = [{"article": f"a{i}", "highlights": f"h{i}", "id": str(i)} for i in range(3)]
    fake_hub[(HUB_ID, HUB_NAME)] = {"validation": rows}
    pool = CNNDailyMail.prepare("val", max_size=2)
    assert [(s.id, s.prompt_or_input_text, s.references) for s, _ in pool] == [
        ("val_0", "a0", ["h0"]),
        ("val_1", "a1", ["h1"]),
    ]


@pytest.mark.parametrize(
    "files, message",
    [
        ({"all_train.txt": "http://a\n"}, r"contains the URL list all_train\.txt but no \.story file"),
        ({"train.json": '[{"src": 3, "tgt": []}]'}, r"row 0: column 'src' must be a list of sentences"),
        ({"train.csv": "article,summary\nx,y\n"}, r"csv:2: no column 'highlights' \(columns: article, summary\)"),
    ],
)
def test_bad_files_are_named(write: Write, files: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CNNDailyMail.prepare("train", path=write(files))
