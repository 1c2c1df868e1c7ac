"""Rows of table files, and errors that name file, line and columns."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.rows import Row, read_rows

Write = Callable[[dict[str, Any]], Path]
ROWS = [{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"}, {"a": "", "b": "x\ny"}]


@pytest.mark.parametrize(
    "name, content",
    [
        ("t.jsonl", '{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"}\n\n{"a": "", "b": "x\\ny"}\n'),
        ("t.json", '[{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"},\n {"a": "", "b": "x\\ny"}]'),
        ("t.json", '{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"}\n{"a": "", "b": "x\\ny"}'),
        ("t.json", '\n{\n "a": "one, \u201ctwo\u201d", "b": "\U0001f600"\n}\n{\n "a": "", "b": "x\\ny"}\n'),
        ("t.jsonl", '{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"}\r{"a": "", "b": "x\\ny"}\r'),
        ("t.jsonl", '[{"a": "one, \u201ctwo\u201d", "b": "\U0001f600"},\n {"a": "", "b": "x\\ny"}]'),
        ("t.csv", '\ufeffa,b\r\n"one, \u201ctwo\u201d",\U0001f600\r\n,"x\ny"\r\n'),
        ("t.csv", 'a;b\none, \u201ctwo\u201d;\U0001f600\n;"x\ny"\n'),
        ("t.csv", 'sep=;\r\na;b\r\none, \u201ctwo\u201d;\U0001f600\r\n;"x\ny"\r\n'),
        ("t.csv", 'sep=|\ra|b\rone, \u201ctwo\u201d|\U0001f600\r|"x\ny"\r'),
        ("t.tsv", 'a\tb\none, \u201ctwo\u201d\t\U0001f600\n\t"x\ny"\n'),
    ],
)
def test_every_text_format_gives_the_same_rows(write: Write, name: str, content: str) -> None:
    encodings = ("utf-8", "utf-16")
    files: dict[str, Any] = {f"{encoding}_{name}": content.encode(encoding) for encoding in encodings}
    folder = write({**files, f"{name}.gz": gzip.compress(content.encode())})
    for file in (*files, f"{name}.gz"):
        if not content.startswith("\ufeff") or "16-" not in file:
            assert [row.values for row in read_rows(folder / file)] == ROWS, file


def test_csv_is_read_in_the_encoding_that_is_set(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rl4dialog")
    folder = write({"t.csv": "a;b\nna\u00efve \u2013;1\n".encode("cp1252")})
    assert [row.values for row in read_rows(folder / "t.csv", encoding="cp1252")] == [
        {"a": "na\u00efve \u2013", "b": "1"}
    ]
    assert "t.csv: columns are separated by ';'" in caplog.text
    for encoding, message in (("ascii", "not valid ASCII"), ("rot13", "there is no encoding 'rot13'; try utf-16")):
        with pytest.raises(DataError, match=f"t.csv: {message}"):
            list(read_rows(folder / "t.csv", encoding=encoding))


def test_parquet_gives_the_same_rows(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    rows = list(read_rows(tmp_path / "t.parquet"))
    assert [row.values for row in rows] == ROWS
    assert rows[1].place.endswith("t.parquet, row 1")


def test_ten_thousand_long_rows_are_read(write: Write) -> None:
    folder = write({"t.csv": "a,b\n" + "1,2\n" * 10_000 + "3," + "word " * 100_000 + "\n"})
    rows = list(read_rows(folder / "t.csv"))
    assert len(rows) == 10_001
    assert rows[-1].place.endswith("t.csv:10002")
    assert len(rows[-1].text("b")) == 500_000


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("t.jsonl", '{"a": 1}\n{"a": \n', r"t\.jsonl:2: not valid JSON"),
        ("t.jsonl", '{"a": 1}\n[1]\n', r"t\.jsonl:2: must be a JSON object with one value per column, not \[1\]"),
        ("t.jsonl", "1" * 5000, r"t\.jsonl:1: not valid JSON"),
        ("t.json", '[{"a": 1}, 2]', r"t\.json, row 1: must be a JSON object"),
        ("t.json", '[{"a": 1}', r"t\.json:1: not valid JSON"),
        ("t.json", '{\n "a": 1,\n}', r"t\.json:1: not valid JSON"),
        (
            "t.json",
            '{\n "n": 1}',
            r"t\.json contains one object; a list of objects, or one object per line, is needed$",
        ),
        ("t.json", '{\n "n": 1,\n "data": [{"a": 1}]\n}', r"is needed; save the list in 'data' as a file of its own"),
        ("t.csv", "a,b\n1,2\n1\n", r"t\.csv:3: 1 fields, but the first line has 2 columns \(a, b\)"),
        ("t.csv", 'a,b\n"1"x,2\n', r"t\.csv:2: not valid CSV"),
        ("t.csv", "a,a\n1,2\n", r"t\.csv:1: duplicate column name in a, a"),
        ("t.csv", b"a,b\nbr\xffken,1\n", r"t\.csv:2: not valid UTF-8 .* set the encoding, such as encoding: cp1252"),
        ("t.csv", "sep=;\na;b\n1;2\n1\n", r"t\.csv:4: 1 fields"),
        ("t.parquet", "no parquet", r"t\.parquet cannot be read as a Parquet file"),
        ("t.jsonl.gz", "no gzip", r"t\.jsonl\.gz cannot be read as a gzip file"),
        ("t.xls", "", r"t\.xls has an unknown format; tables must be \.jsonl, \.json, \.csv, \.tsv or \.parquet files"),
    ],
)
def test_malformed_file_is_named_with_its_line(write: Write, name: str, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_rows(write({name: content}) / name))


def test_delimiter_must_be_one_character(write: Write) -> None:
    folder = write({"t.csv": "a;b\n1;2\n"})
    assert next(read_rows(folder / "t.csv", ";")).values == {"a": "1", "b": "2"}
    for delimiter in ("::", "", 3):
        with pytest.raises(DataError, match=f"must be one character, not {delimiter!r}"):
            list(read_rows(folder / "t.csv", delimiter))  # type: ignore[arg-type]


def test_missing_column_names_those_that_exist() -> None:
    row = Row({"question": "q", "answer": "a"}, "t.csv:2")
    with pytest.raises(
        DataError, match=r"t\.csv:2: no column 'anwser'; did you mean 'answer'\? \(columns: question, a"
    ):
        row.text("anwser")


def test_dots_lead_into_nested_columns() -> None:
    row = Row({"a": {"b": "x"}, "c": [{"d": "1"}, {"d": "2"}], "e.f": "exact", "g": [[{"h": ["3", "4"]}], []]}, "here")
    assert (row["a.b"], row["c.d"], row["e.f"]) == ("x", ["1", "2"], "exact")
    assert row["g.h"] == [["3", "4"]] and row.texts("g.h") == ["3", "4"]
    assert "a.b" in row and "a.c" not in row and "c.x" not in row
    assert row.get("a.c", 7) == 7


def test_text_is_text_or_a_number() -> None:
    row = Row({"a": "x", "b": 4, "c": None, "d": ["x", 2], "e": [], "f": True}, "here")
    assert (row.text("a"), row.text("b"), row.texts("a"), row.texts("d")) == ("x", "4", ["x"], ["x", "2"])
    for column in ("c", "d", "f"):
        with pytest.raises(DataError, match=f"here: column '{column}' must contain text, not"):
            row.text(column)
    with pytest.raises(DataError, match=r"here: column 'a' is not valid Unicode \(surrogates not allowed\)"):
        Row({"a": "\ud83d"}, "here").text("a")
    with pytest.raises(DataError, match="here: column 'e' is an empty list"):
        row.texts("e")
