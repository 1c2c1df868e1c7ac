"""CommonGen from the original files, in both forms, and from a stand-in for the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.commongen import HUB_ID, CommonGen
from rl4dialog.experiments.stand_in_data import COMMONGEN

Write = Callable[[dict[str, Any]], Path]


def samples_of(pool: CommonGen) -> list[Sample]:
    return [sample for sample, _ in pool]


def test_prompt_is_that_of_rl4lms(write: Write) -> None:
    folder = write({"commongen.train.jsonl": COMMONGEN})
    sample = DataPoolRegistry.get("commongen", {"split": "train", "path": str(folder)})[0][0]
    assert sample.prompt_or_input_text == "summarize: boat row "
    assert sample.meta_data == {"concepts": ["boat", "row"]}
    changed = CommonGen.prepare("train", ", ", ".", "generate a sentence with: ", folder)
    assert changed[0][0].prompt_or_input_text == "generate a sentence with: boat, row."


def test_train_has_a_sample_per_sentence_and_the_others_one_per_set(write: Write) -> None:
    folder = write({"commongen.train.jsonl": COMMONGEN, "commongen.dev.jsonl": COMMONGEN})
    train, val = samples_of(CommonGen.prepare("train", path=folder)), samples_of(CommonGen.prepare("val", path=folder))
    assert [s.references for s in train] == [["They row a boat."], ["A boat is rowed."], ["We sing a song."]]
    assert [s.references for s in val] == [["They row a boat.", "A boat is rowed."], ["We sing a song."]]


def test_formatted_text_files_give_the_same_samples(write: Write) -> None:
    folder = write(
        {
            "commongen.dev.src_alpha.txt": "boat row\nboat row\nsing song\n",
            "commongen.dev.tgt.txt": "They row a boat.\nA boat is rowed.\nWe sing a song. \n",
        }
    )
    from_text = samples_of(CommonGen.prepare("val", path=folder))
    write({"commongen.dev.jsonl": COMMONGEN})
    assert samples_of(CommonGen.prepare("val", path=folder)) == from_text


def test_hidden_test_sentences_are_one_empty_reference(write: Write) -> None:
    folder = write({"commongen.test_noref.jsonl": '{"concept_set": "boat_N#row_V", }\n'})
    assert [s.references for s in samples_of(CommonGen.prepare("test", path=folder))] == [[""]]
    write({"commongen.test.src_alpha.txt": "boat row\n", "commongen.test.tgt.txt": "Row!\n"})
    assert [s.references for s in samples_of(CommonGen.prepare("test", path=folder))] == [["Row!"]]


def test_hub_rows_become_samples(fake_hub: Any) -> None:
    rows = [
        {"concept_set_idx": 0, "concepts": ["a", "b"], "target": "b a"},
        {"concept_set_idx": 0, "concepts": ["a", "b"], "target": "a b"},
        {"concept_set_idx": 1, "concepts": ["c"], "target": ""},
    ]
    gem_row = {"concepts": ["a", "b"], "target": "b a", "references": ["b a", "a b"]}
    fake_hub[("GEM/common_gen", None)] = {"validation": [gem_row]}
    assert CommonGen.prepare("val", dataset_id="GEM/common_gen")[0][0].references == ["b a", "a b"]
    fake_hub[(HUB_ID, None)] = {"validation": rows}
    samples = samples_of(CommonGen.prepare("val"))
    assert [(s.prompt_or_input_text, s.references) for s in samples] == [
        ("summarize: a b ", ["b a", "a b"]),
        ("summarize: c ", [""]),
    ]


@pytest.mark.parametrize(
    "files, message",
    [
        ({"commongen.train.jsonl": '{"concept_set": "a_N"}\n{"words": "b"}\n'}, r"jsonl:2: no column 'concept_set'"),
        ({"commongen.train.jsonl": "[]\n"}, r"jsonl:1: no column 'concept_set' \(columns: none\)"),
        ({"commongen.train.jsonl": '{"concept_set": \n'}, r"commongen\.train\.jsonl:1: not valid JSON"),
        (
            {"commongen.train.src_alpha.txt": "a\nb\n", "commongen.train.tgt.txt": "a\n"},
            r"src_alpha\.txt and .*tgt\.txt must have equally many lines, not 2 and 1",
        ),
        ({"commongen.train.jsonl": ""}, r"'commongen' has no samples in split 'train'"),
        ({"commongen.dev.jsonl": COMMONGEN}, r"has no split 'train' \(it has: val\)"),
    ],
)
def test_bad_files_are_named(write: Write, files: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CommonGen.prepare("train", path=write(files))
