"""CommonGen and ToTTo from their files, in every form, and from a stand-in for the hub."""

import copy
import json

import pytest
from stand_in_data import COMMONGEN, TABLE_EXAMPLE, cell

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.rows import Row
from rl4dialog.features.corpora.data_to_text import COMMONGEN_ID, TOTTO_ID, CommonGen, Example, ToTTo, table_cells


def samples_of(pool):
    return [sample for sample, _ in pool]


def test_prompt_is_that_of_rl4lms(write):
    folder = write({"commongen.train.jsonl": COMMONGEN})
    sample = DataPoolRegistry.get("commongen", {"split": "train", "path": str(folder)})[0][0]
    assert sample.prompt_or_input_text == "summarize: boat row "
    assert sample.meta_data == {"concepts": ["boat", "row"]}
    changed = CommonGen.prepare("train", ", ", ".", "generate a sentence with: ", folder)
    assert changed[0][0].prompt_or_input_text == "generate a sentence with: boat, row."


def test_prompt_is_that_of_rl4lms_with_a_sample_per_sentence_in_train(write):
    folder = write({"commongen.train.jsonl": COMMONGEN, "commongen.dev.jsonl": COMMONGEN})
    train, val = samples_of(CommonGen.prepare("train", path=folder)), samples_of(CommonGen.prepare("val", path=folder))
    assert [s.references for s in train] == [["They row a boat."], ["A boat is rowed."], ["We sing a song."]]
    assert [s.references for s in val] == [["They row a boat.", "A boat is rowed."], ["We sing a song."]]
    folder = write({"commongen.test_noref.jsonl": '{"concept_set": "boat_N#row_V", }\n'})
    assert [s.references for s in samples_of(CommonGen.prepare("test", path=folder))] == [[""]]
    write({"commongen.test.src_alpha.txt": "boat row\n", "commongen.test.tgt.txt": "Row!\n"})
    assert [s.references for s in samples_of(CommonGen.prepare("test", path=folder))] == [["Row!"]]


def test_formatted_text_files_give_the_same_samples(write):
    folder = write(
        {
            "commongen.dev.src_alpha.txt": "boat row\nboat row\nsing song\n",
            "commongen.dev.tgt.txt": "They row a boat.\nA boat is rowed.\nWe sing a song. \n",
        }
    )
    from_text = samples_of(CommonGen.prepare("val", path=folder))
    write({"commongen.dev.jsonl": COMMONGEN})
    assert samples_of(CommonGen.prepare("val", path=folder)) == from_text


def test_hub_rows_become_samples(fake_hub):
    rows = [
        {"concept_set_idx": 0, "concepts": ["a", "b"], "target": "b a"},
        {"concept_set_idx": 0, "concepts": ["a", "b"], "target": "a b"},
        {"concept_set_idx": 1, "concepts": ["c"], "target": ""},
    ]
    gem_row = {"concepts": ["a", "b"], "target": "b a", "references": ["b a", "a b"]}
    fake_hub[("GEM/common_gen", None)] = {"validation": [gem_row]}
    assert CommonGen.prepare("val", dataset_id="GEM/common_gen")[0][0].references == ["b a", "a b"]
    fake_hub[(COMMONGEN_ID, None)] = {"validation": rows}
    samples = samples_of(CommonGen.prepare("val"))
    assert [(s.prompt_or_input_text, s.references) for s in samples] == [
        ("summarize: a b ", ["b a", "a b"]),
        ("summarize: c ", [""]),
    ]


@pytest.mark.parametrize(
    "files, message",
    [
        ({"commongen.train.jsonl": '{"concept_set": "a_N"}\n{"words": "b"}\n'}, r"jsonl:2: no column 'concept_set'"),
        ({"commongen.train.jsonl": "[]\n"}, "jsonl:1: must be a JSON object"),
        ({"commongen.train.jsonl": '{"concept_set": \n'}, r"commongen\.train\.jsonl:1: not valid JSON"),
        ({"commongen.train.src_alpha.txt": "a\nb\n", "commongen.train.tgt.txt": "a\n"}, "many lines, not 2 and 1"),
        ({"commongen.train.jsonl": ""}, r"'commongen' has no samples in split 'train'"),
        ({"commongen.dev.jsonl": COMMONGEN}, r"has no split 'train' \(it has: val\)"),
    ],
)
def test_bad_files_are_named(write, files, message):
    with pytest.raises(DataError, match=message):
        CommonGen.prepare("train", path=write(files))


SUBTABLE = (
    "<table> <cell> Japan <col_header> Place </col_header> <row_header> Green </row_header> </cell> </table>"
    "<page_title> Tea </page_title> "
    "<table> <cell> Japan <col_header> Place </col_header> <row_header> Green </row_header> </cell> </table>"
)
FULLTABLE = (
    "<table> <row> <cell> Kind </cell> <cell> Place <row_header> Kind </row_header> </cell> </row> "
    "<row> <cell> Green <col_header> Kind </col_header> </cell> "
    "<cell> China <col_header> Place </col_header> <row_header> Green </row_header> </cell> "
    "<highlighted_cell> Japan <col_header> Place </col_header> <row_header> Green </row_header> </highlighted_cell> "
    "</row> </table>"
)


def write_examples(write, *examples):
    return write({"totto_dev_data.jsonl": "".join(json.dumps(example) + "\n" for example in examples)})


def test_cells_are_written_with_their_headers_and_in_a_full_table(write):
    sample = DataPoolRegistry.get("totto", {"split": "val", "path": str(write_examples(write, TABLE_EXAMPLE))})[0][0]
    assert sample.prompt_or_input_text == SUBTABLE
    assert sample.references == ["Green tea is from Japan.", "Japan makes green tea."]
    assert sample.id == "val_0"
    assert sample.meta_data == {"raw_table": TABLE_EXAMPLE}
    (sample,) = [s for s, _ in ToTTo.prepare("val", "fulltable", write_examples(write, TABLE_EXAMPLE))]
    assert sample.prompt_or_input_text == FULLTABLE + "<page_title> Tea </page_title> " + FULLTABLE
    head = [cell("wide", True, column_span=2), cell("narrow", True)]
    table = [head, [cell("a"), cell("b"), cell("c"), cell("beyond")]]
    parsed = Row({"table": table, "highlighted_cells": []}, "x").parsed(Example).table
    wide, narrow = (f"<col_header> {name} </col_header> " for name in ("wide", "narrow"))
    assert table_cells(parsed)[1] == [f"a {wide}", f"b {wide}", f"c {narrow}", "beyond "]


def test_hub_rows_give_the_same_sample_as_the_file(write, fake_hub):
    hub_row = copy.deepcopy(TABLE_EXAMPLE)
    stages = hub_row["sentence_annotations"]
    hub_row["sentence_annotations"] = {name: [stage[name] for stage in stages] for name in stages[0]}
    hub_row["overlap_subset"] = "True"
    fake_hub[(TOTTO_ID, None)] = {"validation": [hub_row]}
    assert list(ToTTo.prepare("val")) == list(ToTTo.prepare("val", path=write_examples(write, TABLE_EXAMPLE)))


@pytest.mark.parametrize("annotations", [None, [{"final_sentence": "none", "original_sentence": "none"}]])
def test_hidden_sentences_are_one_empty_reference(write, annotations):
    hidden = {**TABLE_EXAMPLE, "sentence_annotations": annotations}
    (sample,) = [s for s, _ in ToTTo.prepare("val", path=write_examples(write, hidden))]
    assert sample.references == [""]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"table": [[{"value": "x"}]]}, r"table\[0\]\[0\]: the key .is_header. is missing and the key .c"),
        ({"table": 3}, "table: input should be a valid list"),
        ({"highlighted_cells": [[1]]}, r"highlighted_cells\[0\]: list should have at least 2 items"),
        ({"sentence_annotations": [{"original_sentence": "x"}]}, r"no column 'sentence_annotations\.final_sentence'"),
    ],
)
def test_malformed_example_is_named(write, change, message):
    with pytest.raises(DataError, match=rf"totto_dev_data\.jsonl:1: {message}"):
        ToTTo.prepare("val", path=write_examples(write, {**TABLE_EXAMPLE, **change}))


def test_cell_outside_the_table_and_missing_column_are_named(write):
    with pytest.raises(DataError, match=r"totto_dev_data\.jsonl:1: the key 'table' is missing .*, got {'text': 'x'}"):
        ToTTo.prepare("val", path=write_examples(write, {"text": "x"}))
    folder = write_examples(write, TABLE_EXAMPLE, {**TABLE_EXAMPLE, "highlighted_cells": [[2, 0]]})
    with pytest.raises(DataError, match=r"jsonl:2: highlighted cell \[2, 0\] is not in the table of 2 rows"):
        ToTTo.prepare("val", path=folder)
