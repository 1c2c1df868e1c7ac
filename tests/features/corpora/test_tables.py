"""PARENT by hand, and ToTTo's evaluation with it and with BLEU."""

import pytest
from sacrebleu.metrics import BLEU

from rl4dialog.core.errors import DataError
from rl4dialog.features.corpora.tables import BleuTottoMetric, ParentTottoMetric, parent_score

TINY = 1e-5


CELLS, HIGHLIGHTED_CELLS = [["a", "b"], ["q"]], [["b", "q"], ["a"]]


def test_ngram_counts_as_far_as_reference_or_table_have_it():
    found = parent_score(["a", "b", "c", "d", "e"], [["a", "b", "q", "d", "e"]], CELLS, HIGHLIGHTED_CELLS)
    # Of the words all but c; of the pairs a b and d e, and half of b c; then a b c (2/3) and b c d (1/3), and so on.
    assert found.precision == pytest.approx((4 / 5 * 2.5 / 4 * 1 / 3 * 0.75 / 2) ** 0.25)
    # The table has a, b and q, of which two are found; of its pairs a b (1), b q (1) and q d (1/2) only a b.
    # The reference mentions b q and a in full, so that the table's own recall has no weight.
    assert found.recall == pytest.approx((2 / 3 * 1 / 2.5 * TINY * TINY) ** 0.25)


def test_table_counts_as_far_as_the_reference_is_silent_about_it():
    found = parent_score(["a", "b", "c", "d", "e"], [["a", "z", "z", "d", "e"]], CELLS, HIGHLIGHTED_CELLS)
    # Of the reference's words the table has a, which is found, but no longer n-gram with a is.
    reference_recall = (1 * TINY**3) ** 0.25
    # The text mentions half of b q, and a. The reference mentions a: half of the weight goes to the table.
    assert found.recall == pytest.approx(reference_recall**0.5 * 0.75**0.5)


def test_text_without_a_right_word_scores_0():
    assert parent_score(["n"], [["a"]], [["a"]], [["a"]]) == pytest.approx((0, TINY, 0), abs=1e-4)
    assert parent_score([], [["a"]], [["a"]], [["a"]])[::2] == (0, 0)
    found = parent_score(["x", "y"], [["x", "z"]], table=[["y"]], highlighted=[["y"]])
    # x is in the reference, y in the table; of the pair the table has half; there are no longer n-grams.
    assert found.precision == pytest.approx((1 * 0.5 * TINY * TINY) ** 0.25)
    # No word of the reference is in the table, so nothing of it need be found, and the table alone counts.
    assert found.recall == pytest.approx(1.0)
    assert found.f_score == pytest.approx(2 * found.precision / (found.precision + 1), rel=1e-3)


NULL = ["<", "null", ">"]


def record(overlap, **changes):
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
REFERENCES = [["Ann and Bo.", "Bo, Ann."], ["Bo."], ["A page", "Ann", "Bo", "named ann"]]


def test_scores_are_those_of_prepared_texts_and_tables():
    infos = [{"raw_table": record(overlap)} for overlap in (True, False, "True")]
    expected = [
        parent_score(words, references, TABLE, HIGHLIGHTED)
        for words, references in [
            (["ann", "knows", "bo", "."], [["ann", "and", "bo", "."], ["bo", ",", "ann", "."], NULL]),
            (NULL, [["bo", "."], NULL, NULL]),
            (["a", "page", "named", "ann"], [["a", "page"], ["ann"], ["bo"], ["named", "ann"]]),
        ]
    ]
    found = ParentTottoMetric().compute([""] * 3, ["Ann knows Bo.", "", "a PAGE  named ann"], REFERENCES, infos)
    f_scores = [score.f_score for score in expected]
    assert found["table_to_text/parent_overall_f_score"] == (pytest.approx(f_scores), pytest.approx(sum(f_scores) / 3))
    for name, chosen in {"overall": expected, "overlap": expected[::2], "non_overlap": expected[1:2]}.items():
        for part in ("precision", "recall"):
            mean = sum(getattr(score, part) for score in chosen) / len(chosen)
            assert found[f"table_to_text/parent_{name}/{part}"] == (None, pytest.approx(mean))
    assert found["table_to_text/parent_overlap_f_score"][0] is None
    assert len(found) == 9


NO_TABLE = r"'parent_totto' needs .*meta_data\['raw_table'\].*totto provides; text 0 has"


@pytest.mark.parametrize(
    ("info", "message"),
    [
        *((info, NO_TABLE) for info in ({}, {"raw_table": "x"}, {"raw_table": {"table": []}})),
        ({"raw_table": record(True, table=[[{}]], highlighted_cells=[])}, "table 7 has a cell without 'value'"),
        ({"raw_table": record(True, highlighted_cells=[[3, 0]])}, "table 7 highlights cells that do not exist: .*3, 0"),
    ],
)
def test_samples_without_a_whole_table_are_refused(info, message):
    with pytest.raises(DataError, match=message):
        ParentTottoMetric().compute([""], ["a"], [["a"]], [info])


BLEU_TEXTS = ["Ann and Bo know each other.", "The page names  Ann and Bo", ""]
BLEU_REFERENCES = [["ann and Bo know each other well."], ["The page names Bo and Ann", "the Page names Ann"], ["Bo"]]


def test_scores_are_bleu_of_three_references_in_lower_case():
    infos = [{"raw_table": {"table": [], "highlighted_cells": [], "overlap_subset": o}} for o in (True, False, None)]
    found = BleuTottoMetric().compute([""] * 3, BLEU_TEXTS, BLEU_REFERENCES, infos)
    texts = ["ann and bo know each other.", "the page names ann and bo", "<null>"]
    null = "<null>"
    streams = [
        ["ann and bo know each other well.", "the page names bo and ann", "bo"],
        [null, "the page names ann", null],
        [null, null, null],
    ]
    for name, rows in {"overall": slice(3), "overlap": slice(1), "non_overlap": slice(1, 2)}.items():
        expected = BLEU().corpus_score(texts[rows], [stream[rows] for stream in streams]).score / 100
        assert 0 < expected < 1
        assert found[f"table_to_text/bleu_{name}"] == (None, pytest.approx(expected))
