"""Whatever happened to a data file, a datapool gives valid samples, or an error that names the file."""

import shutil
from pathlib import Path

import pytest
from data_files import POOLS
from feature_rows import rows_of_features
from hypothesis import given
from hypothesis import strategies as st

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample

DAMAGES = ["cut", "drop", "insert", "flip", "line", "twice", "swap", "empty", "encoding", "ends", "long", "word"]
PIECES = [
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\r",
    b'"',
    b"\\ud800",
    b"\t",
    b",",
    b"{",
    b"__eou__",
    b"NaN",
    b"1e999",
]
WORDS = [b"null", b"true", b"-1", b"[]", b"{}", b'""', b"1e400", b"9" * 5000, b"[" * 3000, b'{"a": 1}', b"NaN"]


@st.composite
def damaged(draw, data):
    """The content of a file after something happened to it."""
    kind = draw(st.sampled_from(DAMAGES))
    start, end = sorted(draw(st.integers(0, len(data))) for _ in range(2))
    lines = data.split(b"\n")
    line = draw(st.integers(0, len(lines) - 1))
    if kind == "cut":
        return data[:start]
    if kind == "drop":
        return data[:start] + data[end:]
    if kind == "insert":
        return data[:start] + draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4))) + data[start:]
    if kind == "flip":
        return (
            data[:start]
            + bytes(byte ^ draw(st.integers(1, 255)) for byte in data[start : start + 1])
            + data[start + 1 :]
        )
    if kind == "line":
        return b"\n".join(lines[:line] + lines[line + 1 :])
    if kind == "twice":
        return b"\n".join([*lines[: line + 1], *lines[line:]])
    if kind == "swap":
        return b"\n".join(reversed(lines))
    if kind == "encoding":
        return data.decode("utf-8", "replace").encode(
            draw(st.sampled_from(["utf-16", "utf-8-sig", "latin-1"])), "replace"
        )
    if kind == "ends":
        return data.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b"\x85"])))
    if kind == "long":
        return data[:start] + b"x" * 1_000_000 + data[start:]
    if kind == "word":
        words = data.split(b" ")
        words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(WORDS))
        return b" ".join(words)
    return b""


def assert_valid(pool):
    assert len(pool) > 0
    for sample, weight in pool:
        assert isinstance(sample, Sample) and isinstance(sample.id, (str, int)) and 0 < weight < float("inf")
        texts = [sample.prompt_or_input_text, *sample.references]
        assert sample.references or type(pool).__name__ in rows_of_features("POOLS_WITHOUT_REFERENCES")
        assert all(isinstance(text, str) for text in texts)
        for text in texts:
            text.encode()


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return {name: write(tmp_path_factory.mktemp(name)) for name, (_, _, write) in POOLS.items()}


@pytest.mark.parametrize("name", POOLS)
def test_original_files_are_valid(originals, name):
    id, args, _ = POOLS[name]
    for split in ("train", "val", "test"):
        assert_valid(DataPoolRegistry.get(id, {**args, "path": str(originals[name]), "split": split}))


@given(st.data())
def test_damaged_file_gives_valid_samples_or_an_error_that_names_it(originals, tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(POOLS)))
    id, args, _ = POOLS[name]
    root = originals[name]
    victim = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())))
    original = victim.read_bytes()
    try:
        victim.write_bytes(data.draw(damaged(original)))
        for split in ("train", "val", "test"):
            try:
                pool = DataPoolRegistry.get(id, {**args, "path": str(root), "split": split})
            except DataError as error:
                message = str(error)
                assert str(root) in message and "\n" not in message and len(message) < 5000, message[:1000]
            else:
                assert_valid(pool)
    finally:
        victim.write_bytes(original)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("json", "train.json"),
        ("gzip", "train.jsonl.gz"),
        ("jsonl", "train.jsonl"),
        ("conversational", "train.jsonl"),
        ("conversations", "train.jsonl"),
        ("conversations_gzip", "train.jsonl.gz"),
        *rows_of_features("CUT_FILES"),
    ],
)
def test_file_that_is_cut_within_a_record_is_not_taken_for_a_whole_one(originals, tmp_path, name, file):
    id, args, _ = POOLS[name]
    root = Path(shutil.copytree(originals[name], tmp_path / "copy"))
    whole = (root / file).read_bytes()
    # Where a line ends a file of lines may be whole; the rest of it would be missed by no one.
    places = [i for i in range(1, len(whole.rstrip())) if file.endswith(".gz") or b"\n" not in whole[i - 1 : i + 1]]
    for size in places[::7]:
        (root / file).write_bytes(whole[:size])
        with pytest.raises(DataError, match=Path(file).name):
            DataPoolRegistry.get(id, {**args, "path": str(root), "split": "train"})
