"""ToTTo from the original format and from a stand-in for the hub."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from original_files import TABLE_EXAMPLE, cell

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.totto import HUB_ID, ToTTo, table_cells

Write = Callable[[dict[str, Any]], Path]


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


def write_examples(write: Write, *examples: dict[str, Any]) -> Path:
    return write({"totto_dev_data.jsonl": "".join(json.dumps(example) + "\n" for example in examples)})


def test_highlighted_cells_are_written_with_their_headers(write: Write) -> None:
    sample = DataPoolRegistry.get("totto", {"split": "val", "path": str(write_examples(write, TABLE_EXAMPLE))})[0][0]
    assert sample.prompt_or_input_text == SUBTABLE
    assert sample.references == ["Green tea is from Japan.", "Japan makes green tea."]
    assert sample.id == "val_0"
    assert sample.meta_data == {"raw_table": TABLE_EXAMPLE}


def test_full_table_marks_highlighted_cells(write: Write) -> None:
    (sample,) = [s for s, _ in ToTTo.prepare("val", "fulltable", write_examples(write, TABLE_EXAMPLE))]
    assert sample.prompt_or_input_text == FULLTABLE + "<page_title> Tea </page_title> " + FULLTABLE


def test_span_of_columns_moves_the_cells_behind_it() -> None:
    table = [
        [cell("wide", True, column_span=2), cell("narrow", True)],
        [cell("a"), cell("b"), cell("c"), cell("beyond")],
    ]
    assert [c.col_headers for c in table_cells(table)[1]] == [["wide"], ["wide"], ["narrow"], []]


def test_hub_rows_give_the_same_sample_as_the_file(write: Write, fake_hub: Any) -> None:
    hub_row = copy.deepcopy(TABLE_EXAMPLE)
    stages = hub_row["sentence_annotations"]
    hub_row["sentence_annotations"] = {name: [stage[name] for stage in stages] for name in stages[0]}
    hub_row["overlap_subset"] = "True"
    fake_hub[(HUB_ID, None)] = {"validation": [hub_row]}
    assert list(ToTTo.prepare("val")) == list(ToTTo.prepare("val", path=write_examples(write, TABLE_EXAMPLE)))


@pytest.mark.parametrize("annotations", [None, [{"final_sentence": "none", "original_sentence": "none"}]])
def test_hidden_sentences_are_one_empty_reference(write: Write, annotations: Any) -> None:
    hidden = {**TABLE_EXAMPLE, "sentence_annotations": annotations}
    (sample,) = [s for s, _ in ToTTo.prepare("val", path=write_examples(write, hidden))]
    assert sample.references == [""]


def test_highlighted_cell_outside_the_table_is_named(write: Write) -> None:
    folder = write_examples(write, TABLE_EXAMPLE, {**TABLE_EXAMPLE, "highlighted_cells": [[2, 0]]})
    with pytest.raises(DataError, match=r"jsonl:2: highlighted cell \[2, 0\] is not in the table of 2 rows"):
        ToTTo.prepare("val", path=folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"table": [[{"value": "x"}]]}, "the table is malformed .*column_span"),
        ({"table": 3}, "the table is malformed"),
        ({"highlighted_cells": [[1]]}, "the table is malformed"),
        ({"sentence_annotations": [{"original_sentence": "x"}]}, r"no column 'sentence_annotations\.final_sentence'"),
    ],
)
def test_malformed_example_is_named(write: Write, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"totto_dev_data\.jsonl:1: {message}"):
        ToTTo.prepare("val", path=write_examples(write, {**TABLE_EXAMPLE, **change}))


def test_file_of_something_else_names_the_column_that_is_missing(write: Write) -> None:
    with pytest.raises(DataError, match=r"totto_dev_data\.jsonl:1: no column 'highlighted_cells' \(columns: text\)"):
        ToTTo.prepare("val", path=write_examples(write, {"text": "x"}))
