"""PARENT over records in ToTTo's form."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.parent import parent_score
from rl4dialog.metrics.parent_totto import ParentTottoMetric

NULL = ["<", "null", ">"]


def record(overlap: Any, **changes: Any) -> dict[str, Any]:
    """A table of a header and two cells, of which the name is highlighted."""
    cells = [("Name", True), ("Ann | Bo", False), (" ", False)]
    return {
        "table": [[{"value": value, "is_header": is_header} for value, is_header in cells]],
        "highlighted_cells": [[0, 1]],
        "table_page_title": "A Page",
        "table_section_title": "",
        "table_section_text": None,
        "overlap_subset": overlap,
        "example_id": 7,
        **changes,
    }


TABLE, HIGHLIGHTED = [["name"], ["ann", "-", "bo"], ["a", "page"]], [["ann", "-", "bo"], ["a", "page"]]
TEXTS = ["Ann knows Bo.", "", "a PAGE  named ann"]
REFERENCES = [["Ann and Bo.", "Bo, Ann."], ["Bo."], ["A page", "Ann", "Bo", "named ann"]]


def test_scores_are_those_of_prepared_texts_and_tables() -> None:
    infos = [{"raw_table": record(overlap)} for overlap in (True, False, "True")]
    expected = [
        parent_score(words, references, TABLE, HIGHLIGHTED)
        for words, references in [
            (["ann", "knows", "bo", "."], [["ann", "and", "bo", "."], ["bo", ",", "ann", "."], NULL]),
            (NULL, [["bo", "."], NULL, NULL]),
            (["a", "page", "named", "ann"], [["a", "page"], ["ann"], ["bo"], ["named", "ann"]]),
        ]
    ]
    found = ParentTottoMetric().compute([""] * 3, TEXTS, REFERENCES, infos)
    f_scores = [score.f_score for score in expected]
    assert found["table_to_text/parent_overall_f_score"] == (pytest.approx(f_scores), pytest.approx(sum(f_scores) / 3))
    for name, chosen in {"overall": expected, "overlap": expected[::2], "non_overlap": expected[1:2]}.items():
        for part in ("precision", "recall"):
            mean = sum(getattr(score, part) for score in chosen) / len(chosen)
            assert found[f"table_to_text/parent_{name}/{part}"] == (None, pytest.approx(mean))
    assert found["table_to_text/parent_overlap_f_score"][0] is None
    assert len(found) == 9


def test_subsets_without_samples_are_left_out() -> None:
    found = ParentTottoMetric().compute([""], ["Ann"], [["Ann"]], [{"raw_table": record("none")}])
    assert all("overall" in key for key in found) and len(found) == 3


@pytest.mark.parametrize("infos", [None, [{}], [{"raw_table": "x"}], [{"raw_table": {"table": []}}]], ids=str)
def test_missing_table_is_named(infos: Any) -> None:
    with pytest.raises(DataError, match=r"'parent_totto' needs .*meta_data\['raw_table'\].*totto provides; text 0 has"):
        ParentTottoMetric().compute([""], ["a"], [["a"]], infos)


def test_cell_without_value_is_refused() -> None:
    infos = [{"raw_table": record(True, table=[[{"is_header": False}]], highlighted_cells=[])}]
    with pytest.raises(DataError, match="table 7 has a cell without 'value'"):
        ParentTottoMetric().compute([""], ["a"], [["a"]], infos)


def test_highlighted_cell_outside_the_table_is_refused() -> None:
    infos = [{"raw_table": record(True, highlighted_cells=[[3, 0]])}]
    with pytest.raises(DataError, match=r"table 7 highlights cells that do not exist: \[\[3, 0\]\]"):
        ParentTottoMetric().compute([""], ["a"], [["a"]], infos)
