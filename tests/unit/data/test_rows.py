"""Lines and rows of files, with errors that name file and line; files of other tools."""

import gzip
import io
import json
import os
import re
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from pages import EXAMPLES, text_of

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core import files
from rl4dialog.core.errors import DataError
from rl4dialog.data import rows
from rl4dialog.data.rows import (
    Row,
    decode_lines,
    expand_path,
    read_lines,
    read_rows,
    read_zip_lines,
    stream_lines,
    walk_files,
)


def test_lines_end_at_newlines_only():
    assert decode_lines("a\u2028b\x85c\r\n\nd\n".encode(), "f") == ["a\u2028b\x85c", "", "d"]
    assert decode_lines(b"\xef\xbb\xbfa\nb", "f") == ["a", "b"]
    with pytest.raises(DataError, match=r"folder/x\.txt:2: not valid UTF-8"):
        decode_lines(b"fine\nbr\xffken\n", "folder/x.txt")


def test_zip_members_are_found_by_base_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("__MACOSX/in/a.txt", "junk")
        archive.writestr("in/a.txt", "one\ntwo\n")
    assert read_zip_lines(tmp_path / "x.zip", "a.txt") == ["one", "two"]
    with pytest.raises(DataError, match=r"x\.zip does not contain b\.txt"):
        read_zip_lines(tmp_path / "x.zip", "b.txt")


def test_walk_gives_the_same_files_from_folder_and_archives(tmp_path):
    files = {"top/b.txt": b"2", "top/in/a.txt": b"1", "top/skip.md": b"0"}
    for name, data in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive, tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        for name in files:
            archive.write(tmp_path / "folder" / name, name)
            tar.add(tmp_path / "folder" / name, name)
    for place in ("folder", "x.zip", "x.tar.gz"):
        found = list(walk_files(tmp_path / place, lambda name: name.startswith("top/") and name.endswith(".txt")))
        assert [data for _, data in found] == [b"2", b"1"]
        assert found[1][0] == str(tmp_path / place / "top/in/a.txt")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.zip", "gone.zip"])
def test_broken_archive_is_named(tmp_path, name):
    if name != "gone.zip":
        (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(DataError, match=rf"{name} cannot be read"):
        list(walk_files(tmp_path / name, lambda name: True))


def test_paths_are_names_with_the_home_folder_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    assert expand_path("~/data") == tmp_path / "data"
    with pytest.raises(DataError, match="path must be a file or folder name, not 3"):
        expand_path(3)


def test_encrypted_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "one\n")
    data = bytearray((tmp_path / "x.zip").read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + flags] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.zip/a\.txt is encrypted; unpack it"):
        read_zip_lines(tmp_path / "x.zip", "a.txt")


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.gz"])
def test_archive_bomb_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "_SURELY_FITS", 2**20)
    path, bomb = tmp_path / name, bytes(2**22)
    if name == "x.gz":
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(bomb)
    elif name == "x.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", bomb)
    else:
        with tarfile.open(path, "w:gz") as tar:
            info = tarfile.TarInfo("a.txt")
            info.size = len(bomb)
            tar.addfile(info, io.BytesIO(bomb))
    with pytest.raises(DataError, match=rf"{re.escape(name)} expands to more than 200 times its size"):
        read_lines(path) if name == "x.gz" else list(walk_files(path, lambda name: True))


def test_zip_with_a_false_size_is_not_unpacked_beyond_it(tmp_path):
    path, content = tmp_path / "x.zip", bytes(2**26)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", content)
    path.write_bytes(path.read_bytes().replace(struct.pack("<L", len(content)), struct.pack("<L", 10)))
    del content
    tracemalloc.start()
    with pytest.raises(DataError, match=r"x\.zip cannot be read as a zip file: Bad CRC"):
        list(walk_files(path, lambda name: True))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(DataError, match=r"pipe\.zip cannot be read: pipe.zip is a named pipe; use a regular file"):
        read_lines(tmp_path / "pipe.zip")
    with pytest.raises(DataError, match=r"pipe\.zip is neither a folder nor an archive"):
        list(walk_files(tmp_path / "pipe.zip", lambda name: True))


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_lines_are_streamed(tmp_path, monkeypatch, name):
    data = "\ufeffeins\r\n\nzwölf\n\u2028drei".encode()
    written = data if name == "x.txt" else gzip.compress(data[:9]) + gzip.compress(data[9:])
    (tmp_path / name).write_bytes(written)
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(rows, "_BYTES_AT_ONCE", size)
        assert list(stream_lines(tmp_path / name)) == ["eins", "", "zwölf", "\u2028drei"]
    (tmp_path / name).write_bytes(written + (b"\nbr\xff" if name == "x.txt" else gzip.compress(b"\nbr\xff")))
    lines = stream_lines(tmp_path / name)
    assert [next(lines) for _ in range(4)] == ["eins", "", "zwölf", "\u2028drei"], "lines before the error are read"
    with pytest.raises(DataError, match=rf"{name}:5: not valid UTF-8"):
        next(lines)


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
def test_every_text_format_gives_the_same_rows(write, name, content):
    encodings = ("utf-8", "utf-16")
    files = {f"{encoding}_{name}": content.encode(encoding) for encoding in encodings}
    folder = write({**files, f"{name}.gz": gzip.compress(content.encode())})
    for file in (*files, f"{name}.gz"):
        if not content.startswith("\ufeff") or "16-" not in file:
            assert [row.values for row in read_rows(folder / file)] == ROWS, file


def test_csv_is_read_in_the_encoding_that_is_set(write, caplog):
    caplog.set_level("INFO", "rl4dialog")
    folder = write({"t.csv": "a;b\nna\u00efve \u2013;1\n".encode("cp1252")})
    assert [row.values for row in read_rows(folder / "t.csv", encoding="cp1252")] == [
        {"a": "na\u00efve \u2013", "b": "1"}
    ]
    assert "t.csv: columns are separated by ';'" in caplog.text
    for encoding, message in (("ascii", "not valid ASCII"), ("rot13", "there is no encoding 'rot13'; try utf-16")):
        with pytest.raises(DataError, match=f"t.csv: {message}"):
            list(read_rows(folder / "t.csv", encoding=encoding))


def test_parquet_gives_the_same_rows(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    rows = list(read_rows(tmp_path / "t.parquet"))
    assert [row.values for row in rows] == ROWS
    assert rows[1].place.endswith("t.parquet, row 1")


def test_ten_thousand_long_rows_are_read(write):
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
        ("t.json", '{\n "n": 1}', r"t\.json contains one object; a list of objects, or one object per line, is"),
        ("t.json", '{\n "n": 1,\n "data": [{"a": 1}]\n}', r"is needed; save the list in 'data' as a file of its own"),
        ("t.csv", "a,b\n1,2\n1\n", r"t\.csv:3: 1 fields, but the first line has 2 columns \(a, b\)"),
        ("t.csv", 'a,b\n"1"x,2\n', r"t\.csv:2: not valid CSV"),
        ("t.csv", "a,a\n1,2\n", r"t\.csv:1: duplicate column name in a, a"),
        ("t.csv", b"a,b\n\xc3\xb6,1\n\xc3\xb6,1\nbr\xffken,1\n", r"t\.csv:4: not valid UTF-8 .* encoding: cp1252"),
        ("t.csv", "sep=;\na;b\n1;2\n1\n", r"t\.csv:4: 1 fields"),
        ("t.parquet", "no parquet", r"t\.parquet cannot be read as a Parquet file"),
        ("t.jsonl.gz", "no gzip", r"t\.jsonl\.gz cannot be read as a gzip file"),
        ("t.xls", "", r"t\.xls has an unknown format; tables must be \.jsonl, \.json, \.csv, \.tsv or \.parquet files"),
    ],
)
def test_malformed_file_is_named_with_its_line(write, name, content, message):
    with pytest.raises(DataError, match=message):
        list(read_rows(write({name: content}) / name))


def test_delimiter_must_be_one_character(write):
    folder = write({"t.csv": "a;b\n1;2\n"})
    assert next(read_rows(folder / "t.csv", ";")).values == {"a": "1", "b": "2"}
    for delimiter in ("::", "", 3):
        with pytest.raises(DataError, match=f"must be one character, not {delimiter!r}"):
            list(read_rows(folder / "t.csv", delimiter))


def test_dots_lead_into_nested_columns_and_missing_columns_name_those_that_exist():
    row = Row({"a": {"b": "x"}, "c": [{"d": "1"}, {"d": "2"}], "e.f": "exact", "g": [[{"h": ["3", "4"]}], []]}, "here")
    assert (row["a.b"], row["c.d"], row["e.f"]) == ("x", ["1", "2"], "exact")
    assert row["g.h"] == [["3", "4"]] and row.texts("g.h") == ["3", "4"]
    assert "a.b" in row and "a.c" not in row and "c.x" not in row
    assert row.get("a.c", 7) == 7
    row = Row({"question": "q", "answer": "a"}, "t.csv:2")
    with pytest.raises(DataError, match=r"t\.csv:2: no column 'anwser'; did you mean 'answer'\? \(columns: question,"):
        row.text("anwser")


def test_text_is_text_or_a_number():
    row = Row({"a": "x", "b": 4, "c": None, "d": ["x", 2], "e": [], "f": True}, "here")
    assert (row.text("a"), row.text("b"), row.texts("a"), row.texts("d")) == ("x", "4", ["x"], ["x", "2"])
    for column in ("c", "d", "f"):
        with pytest.raises(DataError, match=f"here: column '{column}' must contain text, not"):
            row.text(column)
    with pytest.raises(DataError, match=r"here: column 'a' is not valid Unicode \(surrogates not allowed\)"):
        Row({"a": "\ud83d"}, "here").text("a")
    with pytest.raises(DataError, match="here: column 'e' is an empty list"):
        row.texts("e")


LABEL_STUDIO = [
    {
        "id": 7,
        "data": {"text": "Where is it?"},
        "annotations": [
            {"id": 1, "was_cancelled": False, "result": [{"type": "textarea", "value": {"text": ["Here.", "There."]}}]},
            {"id": 2, "was_cancelled": True, "result": []},
        ],
        "predictions": [],
    }
]
ARGILLA = [
    {
        "id": "a",
        "status": "completed",
        "fields": {"prompt": "Where is it?"},
        "metadata": {},
        "suggestions": {},
        "responses": {"reply": [{"value": "Here.", "user_id": "u"}, {"value": "There.", "user_id": "v"}]},
    }
]
PARLAI = (
    "text:Hi, you.\\nHow are you?\tlabels:Fine.|Good.\tepisode_done:False\n"
    "text:Bye.\tlabels:Bye, you.\tlabel_candidates:No.|Yes.\tepisode_done:True\n"
    "text:Tea?\tlabels:Yes: tea.\tepisode_done:True\n"
)
EMPATHETIC = (
    "conv_id,utterance_idx,context,prompt,speaker_idx,utterance,selfeval,tags\n"
    'hit:0_conv:1,1,sad,I was "alone,1,Hi_comma_ you.,5|5|5_2|2|5,\n'
    'hit:0_conv:1,2,sad,I was "alone,0,Fine.,5|5|5_2|2|5,\nhit:0_conv:1,3,sad,I was "alone,1,Bye.,5|5|5_2|2|5,\n'
    "hit:0_conv:1,4,sad,x,0,Bye_comma_ you.,5|5|5_2|2|5,\n"
)
MULTIWOZ = {
    "SNG01.json": {
        "goal": {},
        "log": [{"text": text, "metadata": {}} for text in ("Hi, you.", "Fine.", "Bye.", "Bye.")],
    }
}
COLUMNS = {
    "Label Studio": {"prompt": "data.text", "references": "annotations.result.value.text"},
    "Argilla": {"prompt": "fields.prompt", "references": "responses.reply.value"},
}
FILES = {
    "Label Studio": ("train.json", json.dumps(LABEL_STUDIO)),
    "Argilla": ("train.json", json.dumps(ARGILLA, indent=2)),
    "ParlAI": ("train.txt", PARLAI),
    "EmpatheticDialogues": ("train.csv", EMPATHETIC),
    "MultiWOZ": ("data.json", json.dumps(MULTIWOZ, indent=4)),
}


def samples(file, **args):
    id = "csv" if file.suffix == ".csv" else "jsonl"
    return [sample for sample, _ in DataPoolRegistry.get(id, {"split": "train", "path": {"train": str(file)}, **args})]


@pytest.mark.parametrize("tool", FILES)
def test_file_of_another_tool_is_refused_by_name(tmp_path, tool):
    file = tmp_path / FILES[tool][0]
    file.write_text(FILES[tool][1], encoding="utf-8")
    with pytest.raises(
        DataError, match=f"{file.name}.*; this is a file of {tool}, and 'Files from elsewhere' in docs/"
    ):
        samples(file)


@pytest.mark.parametrize("tool", COLUMNS)
def test_nested_columns_read_annotations(tmp_path, tool):
    file = tmp_path / FILES[tool][0]
    file.write_text(FILES[tool][1], encoding="utf-8")
    (found,) = samples(file, columns=COLUMNS[tool])
    assert (found.prompt_or_input_text, found.references) == ("Where is it?", ["Here.", "There."])
    assert str(COLUMNS[tool]).replace("'", "") in text_of("docs/datapools.md")


@pytest.mark.parametrize(
    ("tool", "name"), [("ParlAI", "parlai"), ("EmpatheticDialogues", "empathetic_dialogues"), ("MultiWOZ", "multiwoz")]
)
def test_scripts_of_the_page_convert_dialogues(tmp_path, monkeypatch, tool, name):
    script = (EXAMPLES / f"from_{name}.py").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path(FILES[tool][0]).write_text(FILES[tool][1], encoding="utf-8")
    exec(script, {})
    found = samples(tmp_path / "dialogues.jsonl", columns={"dialogue": "dialogue"}, format="eou")
    assert (found[0].prompt_or_input_text.split()[:2], found[0].references) == (["Hi,", "you."], ["Fine."])
    history = found[1].meta_data["history"]
    assert history[1:] == ["Fine.", "Bye."] and found[1].references[0].startswith("Bye")
    assert tool != "ParlAI" or found[2].references == ["Yes: tea."]


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"PK\x03\x04", "an Excel file or zip archive"), (b"\x89PNG\r\n", "an image"), (b"%PDF-1.7", "a PDF file")],
)
def test_files_that_are_no_text_are_refused_as_what_they_are(tmp_path, start, kind):
    for name in ("t.csv", "t.jsonl"):
        (tmp_path / name).write_bytes(start + b"\x00\xff\n" * 9)
        with pytest.raises(DataError, match=rf"{name} is {kind} and not a text file; save its table as a CSV file"):
            list(read_rows(tmp_path / name))
