"""NarrativeQA from the original files, from UnifiedQA's and from a stand-in for the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.narrative_qa import HUB_ID, NarrativeQA
from rl4dialog.experiments.stand_in_data import QUESTIONS, SUMMARIES

Write = Callable[[dict[str, Any]], Path]

PROMPT = "who is ann? \\n ann is a nurse."
ANSWERS = ["a nurse", "a nurse, in rome"]


def test_original_files_give_unified_qa_prompts(write: Write) -> None:
    folder = write({"qaps.csv": QUESTIONS, "third_party/wikipedia/summaries.csv": SUMMARIES})
    pool = DataPoolRegistry.get("narrative_qa", {"split": "train", "path": str(folder)})
    assert [(s.id, s.prompt_or_input_text, s.references) for s, _ in pool] == [("train_0", PROMPT, ANSWERS)]
    assert [s.references for s, _ in NarrativeQA.prepare("val", path=folder)] == [["the house", "a house"]]


def test_unified_qa_files_are_grouped_by_question(write: Write) -> None:
    line = "Who is Ann? \\n Ann is a nurse. \t "
    folder = write({"dev.tsv": f"{line}A Nurse \nOther? \\n x \t y \n{line}A nurse, in Rome \n"})
    samples = [s for s, _ in NarrativeQA.prepare("val", path=folder)]
    assert [(s.prompt_or_input_text, s.references) for s in samples] == [(PROMPT, ANSWERS), ("other? \\n x", ["y"])]
    assert len(NarrativeQA.prepare("test", path={"test": folder / "dev.tsv"})) == 2


def test_hub_rows_become_samples(fake_hub: Any) -> None:
    row = {
        "document": {"id": "d1", "text": "the whole book", "summary": {"text": "Ann is\n a nurse.", "title": "Ann"}},
        "question": {"text": "Who is Ann?", "tokens": ["Who"]},
        "answers": [{"text": "A Nurse", "tokens": ["A"]}, {"text": "A nurse, in Rome", "tokens": ["A"]}],
    }
    fake_hub[(HUB_ID, None)] = {"validation": [row]}
    assert [(s.prompt_or_input_text, s.references) for s, _ in NarrativeQA.prepare("val")] == [(PROMPT, ANSWERS)]


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"train.tsv": "a\tb\nno answer\n"},
            r"train\.tsv:2: expected 'question and summary<TAB>answer', but found 1 col",
        ),
        ({"test.tsv": "a\tb\n"}, r"contains no NarrativeQA files: tried qaps\.csv .* and train\.tsv"),
        ({"qaps.csv": QUESTIONS}, r"summaries\.csv cannot be read: No such file"),
        (
            {"qaps.csv": QUESTIONS, "third_party/wikipedia/summaries.csv": "document_id,summary\n"},
            r"qaps\.csv:2: .*summaries\.csv has no summary of document 'd1'",
        ),
    ],
)
def test_bad_files_are_named(write: Write, files: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        NarrativeQA.prepare("train", path=write(files))


def test_mapping_must_have_the_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="path has no file for split 'val', only for train"):
        NarrativeQA.prepare("val", path={"train": tmp_path})
